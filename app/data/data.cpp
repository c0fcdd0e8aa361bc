#include "app/data/jobs.h"

namespace megatron::app {

int data(const Args& args) {
  return dispatch("megatron data",
                  {{"preprocess", "Text to tokens: PREFIX_KEY_document.bin and .idx.", data_preprocess},
                   {"info", "Checks a .bin/.idx pair and sums it up.", data_info},
                   {"filter", "Drops documents that are short, of other languages or blocked.", data_filter},
                   {"dedup", "Keeps one of the documents that are nearly the same.", data_dedup},
                   {"overlap", "Finds what a training text shares with a test set; cuts it out.", data_overlap},
                   {"features", "Writes the rows that BERT reads of MNLI, QQP, SQuAD and RACE.", data_features},
                   {"cat", "Prints documents of a pair as text or ids.", data_cat},
                   {"merge", "Makes one pair of several.", data_merge},
                   {"split", "Makes several pairs of one.", data_split},
                   {"index", "Builds the order of GPT samples ahead of time.", data_index}},
                  args);
}

}  // namespace megatron::app
