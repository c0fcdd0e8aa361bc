#include "megatron/run/stop.h"

#include <atomic>
#include <csignal>

#include "megatron/base/machine/environment.h"
#include "megatron/base/ranks/launched_rank.h"

namespace megatron::run {
namespace {

// A signal handler can reach nothing else.
std::atomic<int> requested = 0, saves = 0;
std::atomic<bool> has_supervisor = false;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may touch no lock");

}  // namespace

void stop_on_signals(bool also_usr1) {
  has_supervisor = process_environment().contains(kAttemptVariable);
  struct sigaction action = {};
  action.sa_handler = [](int signal) {
    if (requested.exchange(1) == 0 || has_supervisor || signal == SIGUSR1) return;  // launchers pass each SIGUSR1 on
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  };
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) {
    if (signal == SIGUSR1 && !also_usr1) continue;
    struct sigaction before = {};
    // Who has us ignore one means it: nohup, and a shell's background jobs. SIGUSR1 is ignored until we listen to it.
    if (signal != SIGUSR1 && sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    sigaction(signal, &action, nullptr);
  }
}

void save_on_signal() {
  struct sigaction action = {};
  action.sa_handler = [](int) { ++saves; };
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGUSR1, &action, nullptr);
}

int saves_requested() { return saves; }

bool stop_requested() { return requested != 0; }

}  // namespace megatron::run
