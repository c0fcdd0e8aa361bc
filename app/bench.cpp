#include "app/bench.h"

namespace megatron::app {

int bench(const Args& args) {
  return dispatch(
      "megatron bench",
      {{"step", "Training steps on synthetic data: tokens/s, parts, share of the bound.", bench_step},
       {"pipeline", "Pipeline schedules: measured against simulated, and against one another.", bench_pipeline},
       {"comm", "All-reduce between ranks.", bench_comm},
       {"data", "Text to tokens, the order of samples, and fetching them.", bench_data},
       {"tokenizer", "Learning, encoding and decoding of byte-level BPE.", bench_tokenizer}},
      args);
}

}  // namespace megatron::app
