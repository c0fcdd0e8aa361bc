#pragma once
#include <filesystem>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/config/options.h"
#include "megatron/families/format_words.h"

// Which model a job computes with, and on which ranks, as options.
namespace megatron::recipe {

/// ModelFlags::weights.
inline constexpr const char* kFullWeights = "full";

/// Which model, and the ranks to compute it on.
struct ModelFlags {
  std::string load;
  std::string tokenizer;
  std::string dtype;
  std::string weights = kFullWeights;
  int world_size = 0, tp = 1, pp = 1;
  int dp = 1;   ///< 0: what world_size leaves
  int etp = 0;  ///< ranks of tp that split an expert; 0: all
  int ep = 0;   ///< ranks of tp / etp that divide the experts; 0: as many as can
  int threads_per_rank = 0;
  double timeout_s = 600;
  std::string device = "cpu";

  void visit(auto& v) {
    v("load", load, "Folder of a trained run or checkpoint, a Hugging Face folder, or a GGUF file.", config::Required(),
      config::Common());
    v("tokenizer", tokenizer, "Tokenizer folder or file; empty: the run's or the folder's.", config::Common());
    v("dtype", dtype, "Data type of the weights; empty: the run's, fp32 for a Hugging Face folder.", config::Common(),
      config::Choices({"fp32", "bf16", "fp16", "fp64"}));
    v("weights", weights,
      "How matrices are held: full, as --dtype says; or in blocks of 32 numbers with a scale, whose products are of "
      "integers (a GPT without experts, on the CPU): q8_0, in 8 bits; q4_1, in 4, with a least value; q4_0, in 4.",
      config::Common(),
      config::Choices({kFullWeights, families::kBlockTypes[0].first, families::kBlockTypes[1].first,
                       families::kBlockTypes[2].first}));
    v("world_size", world_size, "Ranks; 0: as many as the layout asks for.");
    v("tp", tp, "Tensor-parallel size.");
    v("pp", pp, "Pipeline-parallel size.");
    v("etp", etp, "Expert-tensor-parallel size: ranks of tp that split each expert; 0: tp.");
    v("ep", ep, "Expert-parallel size: ranks of tp / etp that divide the experts; 0: as many as divide both.");
    v("threads_per_rank", threads_per_rank, "OpenMP threads per rank; 0: cores / ranks.", config::RanksMayDiffer());
    v("timeout_s", timeout_s, "Seconds after which a rank stops waiting for others, and names them.");
    v("device", device, "Device that computes.", config::Common(), config::Choices({"cpu", "cuda"}));
  }
};

/// The option --adapter of jobs whose texts all have the same: kept_adapters.h.
void visit_adapter(auto& v, std::string& adapter) {
  v("adapter", adapter,
    "Folder of low-rank adapters of the model (a run's with lora.rank, or PEFT's), which are not merged into its "
    "weights; empty: none.");
}

inline constexpr int kMaxRanks = 1 << 15;

/// Throws ConfigError, which begins with `job`, for numbers of ranks that no job can have.
inline void check_ranks(const ModelFlags& flags, const char* job) {
  for (const auto& [name, size, least] : {std::tuple{"tp", flags.tp, 1},
                                          {"pp", flags.pp, 1},
                                          {"dp", flags.dp, 0},
                                          {"etp", flags.etp, 0},
                                          {"ep", flags.ep, 0},
                                          {"world-size", flags.world_size, 0}})
    if (size < least || size > kMaxRanks)
      throw ConfigError(rule_got_fix(concat(job, ": --", name, " must be ", least, " to ", kMaxRanks, "."),
                                     concat(size), concat("--", name, " ", least)));
}

/// Of a job whose one word is its model: it stands for --load. Throws ConfigError for other words.
inline void take_model(ModelFlags& flags, const std::vector<std::string>& words, const char* job) {
  if (words.size() > 1 || (!words.empty() && !flags.load.empty()))
    throw ConfigError(
        rule_got_fix(concat(job, " takes one model."), words.back(), concat("leave '", words.back(), "' out")));
  if (!words.empty()) flags.load = words[0];
}

/// Throws ConfigError for flags that no job can have, whatever its model is: its rules of numbers begin with `job`.
inline void check_model_flags(const ModelFlags& flags, const char* job) {
  if (flags.load.empty())
    throw ConfigError(rule_got_fix(concat(job, ": --load must name a trained model."), "none", "--load FOLDER"));
  check_ranks(flags, job);
  std::error_code unknown;
  if (!std::filesystem::exists(flags.load, unknown) && !unknown) throw ConfigError(families::no_weights(flags.load));
}

}  // namespace megatron::recipe
