#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "megatron/config/run_config.h"

namespace megatron::config {

/// What Megatron-LM's parser does not say, but its launcher and its machine do.
struct MegatronLaunch {
  int world_size = 1;
  std::string device = "cuda";  ///< parallel.device: "cpu" on a machine without GPUs
  std::string yaml = "";        ///< what the file of --yaml-cfg has in it
};

/// A command line of Megatron-LM as a recipe.
struct MegatronTranslation {
  struct Line {
    std::string words;  ///< "--lr-warmup-iters 100"
    std::string text;   ///< Maps: "schedule.lr_warmup_samples = 3200"; else why it is ignored
  };
  RunConfig config;           ///< with Megatron-LM's defaults
  std::vector<Line> maps;     ///< what is given and stands for options, in the order of the words
  std::vector<Line> ignored;  ///< what is given and changes nothing
  /// Options of this program among the words, as they are given (`--train.out runs/a`): by path what was typed.
  std::vector<std::string> own;
  std::string pretrained;        ///< --pretrained-checkpoint: taken where --load has no checkpoint
  bool load_must_exist = false;  ///< --exit-on-missing-checkpoint
};

/// The programs of Megatron-LM that are known: pretrain_gpt, pretrain_bert, pretrain_t5.
const std::vector<std::string>& megatron_programs();

/// What `words`, the argument list of one of megatron_programs(), mean: Megatron-LM's defaults, derived values and
/// checks (its validate_args()). Reads nothing but its arguments: the text of the file that yaml_file_of() names waits
/// in `launch`, and is then all that counts besides this program's own options. Throws ConfigError with everything that
/// is wrong: wrong words, values that exclude one another, and in one message all flags that need what is not here.
MegatronTranslation translate_megatron_arguments(const std::string& program, const std::vector<std::string>& words,
                                                 const MegatronLaunch& launch);

/// "ignored, as they change no result: --a, --b 1"; "" where nothing is.
std::string ignored_line(const MegatronTranslation& translation);

}  // namespace megatron::config
