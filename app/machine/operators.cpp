#include <nlohmann/json.hpp>

#include "app/jobs.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/kernels/operators.h"
#include "megatron/kernels/runtime.h"

namespace megatron::app {
namespace {

using nlohmann::json;

const char* dtype_name(at::ScalarType dtype) {
  return dtype == at::kFloat ? "fp32" : dtype == at::kBFloat16 ? "bf16" : dtype == at::kHalf ? "fp16" : "fp64";
}

/// Which implementation serves each operator: on this CPU by dtype, and on CUDA.
json served_operators() {
  json all = json::object();
  for (const kernels::OperatorInfo& info : kernels::operator_list()) {
    json& row = all[info.name];
    for (const auto& [dtype, own] : info.on_cpu)
      row[dtype_name(dtype)] = own ? kernels::instruction_set() : "reference";
    row["cuda"] = info.on_cuda ? "cuda" : "reference";
  }
  return all;
}

void print_operators(const json& all) {
  print("{:28}", "operator");
  for (const auto& [column, _] : all.begin()->items()) print(" {:12}", column);
  print_text("\n");
  for (const auto& [name, row] : all.items()) {
    print("{:28}", name);
    for (const auto& [_, implementation] : row.items()) print(" {:12}", implementation.get<std::string>());
    print_text("\n");
  }
}

}  // namespace

int operators(const Args& args) {
  const json all = served_operators();
  if (args == Args{"--json"})
    print_json(all);
  else
    print_operators(all);
  return kDone;
}

}  // namespace megatron::app
