#include "app/stop.h"

#include <atomic>
#include <csignal>

namespace megatron::app {
namespace {

// A signal handler can reach nothing else.
std::atomic<int> requested = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may touch no lock");

}  // namespace

void stop_on_signals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { requested = 1; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool stop_requested() { return requested != 0; }

}  // namespace megatron::app
