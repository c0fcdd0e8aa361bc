#include <cstdio>
#include <exception>

#include "app/jobs.h"
#include "megatron/base/error.h"

namespace {

struct Job {
  const char* name;
  const char* help;
  int (*run)(const megatron::app::Args&);
};

const std::vector<Job> kJobs = {};

}  // namespace

int main(int argc, char** argv) {
  const megatron::app::Args args(argv + 1, argv + argc);
  try {
    for (const Job& job : kJobs)
      if (!args.empty() && args[0] == job.name) return job.run({args.begin() + 1, args.end()});
    for (const Job& job : kJobs) std::printf("  megatron %-12s %s\n", job.name, job.help);
    return args.empty() || args[0] == "--help" ? 0 : 2;
  } catch (const megatron::ConfigError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
