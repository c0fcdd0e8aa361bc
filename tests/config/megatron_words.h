#pragma once
#include <string>

#include "megatron/base/error.h"
#include "megatron/config/megatron/arguments.h"
#include "megatron/config/megatron/translate.h"

// Command lines of pretrain_gpt, translated.
namespace megatron::config {

/// For `world_size` ranks.
inline MegatronTranslation translation_of_words(const std::string& words, int world_size = 1) {
  return translate_megatron_arguments("pretrain_gpt", shell_words(words, "test"), {.world_size = world_size});
}

/// The error of such a translation; "" where there is none.
inline std::string refusal_of_words(const std::string& words, int world_size = 1) {
  try {
    translation_of_words(words, world_size);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace megatron::config
