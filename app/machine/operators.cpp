#include <nlohmann/json.hpp>

#include "app/jobs.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/machine/gpu.h"
#include "megatron/base/text/printable.h"
#include "megatron/kernels/operators.h"
#include "megatron/kernels/runtime.h"
#include "megatron/parallel/cuda.h"

namespace megatron::app {
namespace {

using nlohmann::json;

const char* dtype_name(at::ScalarType dtype) {
  return dtype == at::kFloat ? "fp32" : dtype == at::kBFloat16 ? "bf16" : dtype == at::kHalf ? "fp16" : "fp64";
}

/// "cuda", "cuda (bf16, fp16)" where these alone are the plugin's, or "reference".
std::string on_cuda(const kernels::OperatorInfo& info) {
  if (info.on_cuda.empty()) return "reference";
  if (info.on_cuda.size() == info.on_cpu.size()) return "cuda";
  std::string names;
  for (const at::ScalarType dtype : info.on_cuda) names += (names.empty() ? "" : ", ") + std::string(dtype_name(dtype));
  return "cuda (" + names + ")";
}

/// Takes the plugin's operators where it can be loaded; else the column of CUDA is what runs without it.
void load_cuda_if_present() {
  if (!gpu_present() || cuda_plugin().empty()) return;
  try {
    parallel::load_cuda();
  } catch (const ConfigError& error) {
    write_line(stderr, concat("note: the column cuda is without the plugin: ", error.what()));
  }
}

/// Which implementation serves each operator: on this CPU by dtype, and on CUDA.
json served_operators() {
  json all = json::object();
  for (const kernels::OperatorInfo& info : kernels::operator_list()) {
    json& row = all[info.name];
    for (const auto& [dtype, own] : info.on_cpu)
      row[dtype_name(dtype)] = own ? kernels::instruction_set() : "reference";
    row["cuda"] = on_cuda(info);
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
  load_cuda_if_present();
  const json all = served_operators();
  if (args == Args{"--json"})
    print_json(all);
  else
    print_operators(all);
  return kDone;
}

}  // namespace megatron::app
