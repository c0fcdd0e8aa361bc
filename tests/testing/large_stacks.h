#pragma once
#include <pthread.h>

#include <cstddef>

namespace megatron {

/// While it lives, the system refuses this process every new thread: each would need a stack larger than all addresses.
class LargeStacks {
 public:
  LargeStacks() {
    pthread_getattr_default_np(&before_);
    pthread_attr_t large;
    pthread_attr_init(&large);
    pthread_attr_setstacksize(&large, std::size_t{1} << 47);
    pthread_setattr_default_np(&large);
    pthread_attr_destroy(&large);
  }
  ~LargeStacks() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  LargeStacks(const LargeStacks&) = delete;
  LargeStacks& operator=(const LargeStacks&) = delete;

 private:
  pthread_attr_t before_ = {};
};

}  // namespace megatron
