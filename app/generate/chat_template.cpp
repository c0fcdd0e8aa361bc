#include "app/generate/chat_template.h"

#include <filesystem>

#include "megatron/base/files/gguf.h"
#include "megatron/interchange/hugging_face/companions.h"

namespace megatron::app {

text::ChatTemplate chat_template_of(const run::ModelFlags& flags) {
  const std::filesystem::path folder =
      flags.tokenizer.empty() ? interchange::companion_folder(flags.load) : std::filesystem::path(flags.tokenizer);
  const bool is_tokenizer = std::filesystem::is_regular_file(folder) && !is_gguf(folder);
  return text::ChatTemplate::load(is_tokenizer ? folder.parent_path() : folder);
}

}  // namespace megatron::app
