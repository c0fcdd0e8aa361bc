#include "app/jobs.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "app/job_help.h"
#include "app/print.h"
#include "megatron/base/error.h"
#include "megatron/base/files/mapped_faults.h"
#include "megatron/base/files/path_error.h"
#include "megatron/base/files/write_error.h"
#include "megatron/base/machine/launcher.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/base/machine/standard_streams.h"
#include "megatron/base/text/nearest.h"
#include "megatron/base/text/printable.h"
#include "megatron/config/options.h"

namespace megatron::app {

namespace {

/// The job `name` ("megatron eval loss").
int run_or_help(const std::string& name, const Job& job, const Args& args) {
  try {
    if (job.run != nullptr) return job.run(args);
    std::istringstream words(name);
    Args names{std::istream_iterator<std::string>(words), {}};
    names.erase(names.begin());
    return run_with_libtorch(std::move(names), args, job.check);
  } catch (const config::HelpRequested& help) {
    print_text(help.what() + help_ending(name));
    return kDone;
  }
}

/// dispatch() with the words of the command line, what it throws printed; the exit code.
int run_job(const std::vector<Job>& jobs, const Args& args) {
  try {
    return dispatch("megatron", jobs, args == Args{"--version"} ? Args{"version"} : args);
  } catch (const ConfigError& error) {
    write_line(stderr, message_of(error));
    return kWrong;
  } catch (const std::filesystem::filesystem_error& error) {  // of a run that has begun it is another exception
    write_line(stderr, message_of(error));
    return is_wrong_path(error) ? kWrong : kFailed;
  } catch (const std::exception& error) {
    write_line(stderr, message_of(error));
    return kFailed;
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
    print("{} JOB …\n\n{}\n{} JOB --help lists a job's options.\n", command, list, command);
    return kDone;
  }
  if (args.empty()) throw ConfigError(rule_got_fix(command + " needs the name of a job.", "none", "one of\n" + list));
  for (const Job& job : jobs)
    if (args[0] == job.name) return run_or_help(command + " " + job.name, job, {args.begin() + 1, args.end()});
  const std::string near = nearest_name(args[0], names);
  throw ConfigError(rule_got_fix(command + " must be followed by the name of a job.", args[0],
                                 near.empty() ? "one of\n" + list : command + " " + near));
}

int run_with_libtorch(const Args& words) {
  constexpr const char* kName = "megatron-torch";
  std::error_code error;
  (void)std::filesystem::current_path(error);
  if (error)  // libtorch's libraries end the process without a reason
    throw ConfigError(rule_got_fix("The current folder must be there.", error.message(),
                                   "cd to a folder that is: this one was removed, or may not be entered"));
  const auto folder = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  if (error)
    throw std::runtime_error(rule_got_fix("megatron finds its parts through /proc.",
                                          concat("/proc/self/exe: ", error.message()), "mount -t proc proc /proc"));
  std::string tried;
  for (const auto& place : {folder / kName, folder.parent_path() / "lib/megatron" / kName}) {
    std::vector<char*> argv = {const_cast<char*>("megatron")};
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    std::fflush(stdout);
    execv(place.c_str(), argv.data());
    tried += concat(tried.empty() ? "" : ", ", place.string(), " (", std::generic_category().message(errno), ")");
  }
  throw std::runtime_error(rule_got_fix("megatron needs megatron-torch, the part of it that computes.", tried,
                                        "make build, or install the whole package again"));
}

int run_with_libtorch(Args names, const Args& args, Check check) {
  if (check != nullptr && !launcher_of(process_environment())) check(args);
  names.insert(names.end(), args.begin(), args.end());
  run_with_libtorch(names);
}

void run_program(const std::vector<Job>& jobs, int argc, char** argv) {
  if (!hold_standard_streams()) {  // better said before the work than after it
    write_line(stderr, rule_got_fix("Standard output must be open.", "it is closed (>&-)", "add > /dev/null"));
    std::_Exit(kWrong);
  }
  let_large_writes_fail();
  explain_mapped_faults();
  const int code = run_job(jobs, {argv + 1, argv + argc});
  // What is printed waits in a buffer: that the disk is full or the reader gone shows only here. Where a job has met
  // it before, an empty line asks for the reason again.
  errno = 0;
  const bool had_failed = std::ferror(stdout) != 0;
  if (had_failed) std::fputc('\n', stdout);
  const bool written = std::fflush(stdout) == 0 && !had_failed;
  if (!written) write_line(stderr, write_error("standard output", "could not be written", errno != 0 ? errno : EIO));
  // All that a job has is given back by now. What is left are libtorch's tables of operators, which take 0.07 s apart.
  std::_Exit(!written && code == kDone ? kFailed : code);
}

}  // namespace megatron::app
