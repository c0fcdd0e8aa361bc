#include "app/generate/chat_template.h"

#include <filesystem>

#include "megatron/interchange/hugging_face/companions.h"

namespace megatron::app {

text::ChatTemplate chat_template_of(const run::ModelFlags& flags) {
  const std::filesystem::path folder =
      flags.tokenizer.empty() ? interchange::companion_folder(flags.load) : std::filesystem::path(flags.tokenizer);
  return text::ChatTemplate::load(std::filesystem::is_regular_file(folder) ? folder.parent_path() : folder);
}

}  // namespace megatron::app
