#include "megatron/comm/first_rank.h"

#include <future>

namespace megatron::comm {

void run_on_every_rank(const Group& group, const std::function<void()>& work, std::chrono::milliseconds beat) {
  if (group.size() == 1) return work();
  std::future<void> working = std::async(std::launch::async, work);  // its end waits for `work`
  for (bool done = false; !done;) {
    double busy = 0;
    if (working.valid()) {
      if (working.wait_for(beat) == std::future_status::ready)
        working.get();
      else
        busy = 1;
    }
    done = group.all_reduce_scalars({busy}, ReduceOp::Max)[0] == 0;
  }
}

}  // namespace megatron::comm
