#include "app/generate/chat_template.h"

#include <filesystem>

#include "megatron/interchange/hugging_face/companions.h"

namespace megatron::app {

text::ChatTemplate chat_template_of(const recipe::ModelFlags& flags) {
  return text::ChatTemplate::load(flags.tokenizer.empty() ? interchange::companion_folder(flags.load)
                                                          : std::filesystem::path(flags.tokenizer));
}

}  // namespace megatron::app
