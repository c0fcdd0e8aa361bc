#include "app/bench/bench.h"

namespace megatron::app {

int bench(const Args& args) {
  return dispatch("megatron bench",
                  {{"step", "", bench_step},  // what they do is said by the program without libtorch (app/front/)
                   {"pipeline", "", bench_pipeline},
                   {"scaling", "", bench_scaling},
                   {"checkpoint", "", bench_checkpoint},
                   {"generate", "", bench_generate},
                   {"comm", "", bench_comm},
                   {"hardware", "", bench_hardware}},
                  args);
}

}  // namespace megatron::app
