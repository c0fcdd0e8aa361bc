#include "app/tokenizer/jobs.h"

namespace megatron::app {

int tokenizer(const Args& args) {
  return dispatch("megatron tokenizer",
                  {{"train", "Trains a tokenizer on text.", tokenizer_train},
                   {"encode", "Text to ids.", tokenizer_encode},
                   {"decode", "Ids to text.", tokenizer_decode},
                   {"info", "Shows what a tokenizer is made of.", tokenizer_info}},
                  args);
}

}  // namespace megatron::app
