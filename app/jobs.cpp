#include "app/jobs.h"

#include <algorithm>
#include <cstdio>

#include "app/job_help.h"
#include "megatron/base/error.h"
#include "megatron/base/text/nearest.h"
#include "megatron/config/options.h"

namespace megatron::app {

namespace {

int run_or_help(const std::string& name, const Job& job, const Args& args) {
  try {
    return job.run(args);
  } catch (const config::HelpRequested& help) {
    std::fputs((help.what() + help_ending(name)).c_str(), stdout);
    return kDone;
  }
}

}  // namespace

int dispatch(const std::string& command, const std::vector<Job>& jobs, const Args& args) {
  std::string list;
  std::vector<std::string> names;
  for (const Job& job : jobs) {
    list +=
        concat("  ", command, " ", job.name,
               std::string(17 - std::min<std::size_t>(16, names.emplace_back(job.name).size()), ' '), job.help, "\n");
  }
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h")) {
    std::printf("%s JOB …\n\n%s\n%s JOB --help lists a job's options.\n", command.c_str(), list.c_str(),
                command.c_str());
    return kDone;
  }
  if (args.empty()) throw ConfigError(rule_got_fix(command + " needs the name of a job.", "none", "one of\n" + list));
  for (const Job& job : jobs)
    if (args[0] == job.name) return run_or_help(command + " " + job.name, job, {args.begin() + 1, args.end()});
  const std::string near = nearest_name(args[0], names);
  throw ConfigError(rule_got_fix(command + " must be followed by the name of a job.", args[0],
                                 near.empty() ? "one of\n" + list : command + " " + near));
}

}  // namespace megatron::app
