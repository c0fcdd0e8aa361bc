#include "app/bench/bench.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron::app {

int bench(const Args& args) {
  return dispatch("megatron bench",
                  {{"step", "Training steps on synthetic data: tokens/s, parts, share of the bound.", bench_step},
                   {"pipeline", "Pipeline schedules: measured, simulated, compared.", bench_pipeline},
                   {"scaling", "The paper's scaling study: predicted for clusters, measured in small.", bench_scaling},
                   {"checkpoint", "Saving and loading against the disk; what a save costs training.", bench_checkpoint},
                   {"generate", "Generation with a trained model: tokens/s, share of the bound.", bench_generate},
                   {"comm", "All-reduce between ranks.", bench_comm},
                   {"hardware", "Rates of this machine, for plan --search and train --layout auto.", bench_hardware},
                   {"data", "Text to tokens, the order of samples, and fetching them.", bench_data},
                   {"tokenizer", "Learning, encoding and decoding of byte-level BPE.", bench_tokenizer}},
                  args);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace megatron::app
