#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "app/jobs.h"
#include "app/json_line.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/machine/cores.h"
#include "megatron/base/machine/gpu.h"
#include "megatron/base/machine/processor.h"
#include "megatron/base/progress.h"
#include "megatron/base/version.h"
#include "megatron/config/options.h"

namespace megatron::app {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// One line of a file of /proc or /sys, from the first that begins with `key`, without the key; "" where there is none.
std::string line_of(const fs::path& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(key)) {
      const std::size_t begin = line.find_first_not_of(" \t:", key.size());
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  return "";
}

/// The number at the start of such a line, times `unit`; 0 where there is none.
std::int64_t number_of(const fs::path& path, const std::string& key, std::int64_t unit) {
  return std::strtoll(line_of(path, key).c_str(), nullptr, 10) * unit;
}

/// The instruction sets that kernels choose from. AMX is asked of the processor itself: the compiler's query is older.
json instruction_sets() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  unsigned a = 0, b = 0, c = 0, d = 0, a1 = 0, b1 = 0, c1 = 0, d1 = 0;
  const bool leaf7 = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0;
  const bool leaf7_1 = leaf7 && a >= 1 && __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1) != 0;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return {{"avx2", __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")},
          {"avx512", avx512},
          {"avx512_bf16", leaf7_1 && (a1 >> 5 & 1) != 0},
          {"amx_bf16", leaf7 && (d >> 24 & 1) != 0 && (d >> 22 & 1) != 0},
          {"amx_int8", leaf7 && (d >> 24 & 1) != 0 && (d >> 25 & 1) != 0}};
#else
  return json::object();
#endif
}

json memory() {
  constexpr std::int64_t kKilobyte = 1024;
  std::string transparent;  // "always [madvise] never": the one in brackets holds
  const std::string choices = line_of("/sys/kernel/mm/transparent_hugepage/enabled", "");
  if (const std::size_t begin = choices.find('['); begin != std::string::npos)
    transparent = choices.substr(begin + 1, choices.find(']', begin) - begin - 1);
  return {{"total_bytes", number_of("/proc/meminfo", "MemTotal", kKilobyte)},
          {"available_bytes", number_of("/proc/meminfo", "MemAvailable", kKilobyte)},
          {"huge_page_bytes", number_of("/proc/meminfo", "Hugepagesize", kKilobyte)},
          {"transparent_huge_pages", transparent}};
}

/// NVIDIA GPUs as the driver lists them: no library of theirs is loaded.
json gpus() {
  json list = json::array();
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc/driver/nvidia/gpus", ignored))
    list.push_back(line_of(entry.path() / "information", "Model"));
  return list;
}

json report() {
  const bool plugin = !cuda_plugin().empty();
  const json found = gpus();
  json backends = {"local", "gloo"};
  if (plugin && !found.empty()) backends.push_back("nccl");
  return {{"cpu", line_of("/proc/cpuinfo", "model name")},
          {"cores", usable_cores()},
          {"instruction_sets", instruction_sets()},
          {"kernels", name_of(available_isas().front())},
          {"memory", memory()},
          {"gpus", found},
          {"backends", backends},
          {"cuda_plugin", plugin},
          {"versions",
           {{"megatron", program_version()},
            {"libtorch", libtorch_version()},
            {"compiler", concat("g++ ", __GNUC__, ".", __GNUC_MINOR__)}}}};
}

std::string joined(const json& names) {
  std::string out;
  for (const auto& name : names) out += (out.empty() ? "" : ", ") + name.get<std::string>();
  return out.empty() ? "none" : out;
}

void print_human(const json& all) {
  const auto row = [](const char* name, const std::string& value) { print("{:18} {}\n", name, value); };
  row("CPU", concat(all["cpu"].get<std::string>(), ", ", all["cores"].get<int>(), " cores for this program"));
  json sets = json::array();
  for (const auto& [name, present] : all["instruction_sets"].items())
    if (present) sets.push_back(name);
  row("instruction sets", joined(sets));
  // AMX needs the system's permission besides.
  row("kernels run on", all["kernels"].get<std::string>());
  const json& mem = all["memory"];
  row("memory", human_bytes(mem["total_bytes"]) + ", " + human_bytes(mem["available_bytes"]) + " available");
  const std::string huge = mem["transparent_huge_pages"];
  row("huge pages", huge == "never" || huge.empty() ? "off: steps take more page faults; see " +
                                                          std::string("/sys/kernel/mm/transparent_hugepage/enabled")
                                                    : huge);
  row("GPUs", joined(all["gpus"]));
  const char* const why = !all["cuda_plugin"]   ? " (nccl: no CUDA plugin in the folder of the program)"
                          : all["gpus"].empty() ? " (nccl: the CUDA plugin is there, a GPU is not)"
                                                : "";
  row("backends", joined(all["backends"]) + why);
  for (const auto& [name, version] : all["versions"].items()) row(name.c_str(), version.get<std::string>());
}

struct DoctorOptions {
  bool as_json = false, operators = false;
  void visit(auto& v) {
    v("operators", operators, "Print which implementation serves each operator, by dtype and device.");
    v("json", as_json, "Print one JSON object.");
  }
};

}  // namespace

int doctor(const Args& args) {
  DoctorOptions options;
  const Args rest = config::parse_command_line(options, args,
                                               "megatron doctor [--operators] [--json]\n\nShows what this machine "
                                               "offers: cores, instruction sets, GPUs, backends, versions.");
  if (!rest.empty())
    throw ConfigError(
        rule_got_fix("megatron doctor takes options alone.", rest[0], concat("leave '", rest[0], "' out")));
  if (options.operators) return run_with_libtorch({"operators", options.as_json ? "--json" : "--no-json"});
  if (options.as_json)
    print_json(report());
  else
    print_human(report());
  return kDone;
}

int version(const Args& args) {
  if (!args.empty()) throw ConfigError(rule_got_fix("megatron version takes no options.", args[0], "megatron version"));
  print("megatron {}, libtorch {}\n", program_version(), libtorch_version());
  return kDone;
}

}  // namespace megatron::app
