#include "app/data_jobs.h"

namespace megatron::app {

int data(const Args& args) {
  return dispatch("megatron data",
                  {{"preprocess", "Text to tokens: PREFIX_KEY_document.bin and .idx.", data_preprocess},
                   {"info", "Checks a .bin/.idx pair and sums it up.", data_info},
                   {"index", "Builds the order of GPT samples ahead of time.", data_index}},
                  args);
}

}  // namespace megatron::app
