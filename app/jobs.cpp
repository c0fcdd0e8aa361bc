#include "app/jobs.h"

#include <algorithm>
#include <cstdio>

#include "megatron/base/error.h"
#include "megatron/base/nearest.h"

namespace megatron::app {

int dispatch(const std::string& command, const std::vector<Job>& jobs, const Args& args) {
  std::string list;
  std::vector<std::string> names;
  for (const Job& job : jobs) {
    list +=
        concat("  ", command, " ", job.name,
               std::string(13 - std::min<std::size_t>(12, names.emplace_back(job.name).size()), ' '), job.help, "\n");
  }
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h")) {
    std::printf("%s JOB …\n\n%s\n%s JOB --help lists a job's options.\n", command.c_str(), list.c_str(),
                command.c_str());
    return kDone;
  }
  if (args.empty()) throw ConfigError(rule_got_fix(command + " needs the name of a job.", "none", "one of\n" + list));
  for (const Job& job : jobs)
    if (args[0] == job.name) return job.run({args.begin() + 1, args.end()});
  const std::string near = nearest_name(args[0], names);
  throw ConfigError(rule_got_fix(command + " must be followed by the name of a job.", args[0],
                                 near.empty() ? "one of\n" + list : command + " " + near));
}

}  // namespace megatron::app
