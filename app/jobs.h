#pragma once
#include <initializer_list>
#include <string>
#include <vector>

#include "megatron/run/exit_codes.h"

// The jobs of the command line: one function and one source file each (train.cpp, tokenizer.cpp, …), one row each in
// megatron.cpp. `args` are the words after the job's name. A job returns the exit code of the contract below or throws;
// dispatch() prints config::HelpRequested on stdout, with what job_help.h knows of the job, and
// run_program() what else it throws: ConfigError on stderr and 2, others on stderr and 1.
//
// Jobs that compute are in a program of their own, megatron-torch (megatron_torch.cpp): libtorch takes 0.2 s to load,
// which whoever counts tokens or looks at a plan need not wait for, nor whoever asks for help or mistypes an option:
// `megatron` becomes it once it has checked the words of such a job, as far as they can be checked without libtorch.
// Options and checks of both programs are in sources called …_options.cpp.
namespace megatron::app {

using Args = std::vector<std::string>;

using run::kDifference;
using run::kDone;
using run::kFailed;
using run::kFaulty;
using run::kInterrupted;
using run::kWrong;

/// Throws config::HelpRequested, and ConfigError for what is wrong with a job's words.
using Check = void (*)(const Args& args);

struct Job {
  const char* name;
  const char* help;              ///< one line
  int (*run)(const Args& args);  ///< null: the job is one of megatron-torch
  Check check = nullptr;         ///< of a job of megatron-torch, before it is; null: megatron-torch does
};

/// The Check of a job whose words `parse` makes options of.
template <auto parse>
void checked(const Args& args) {
  (void)parse(args);
}

/// Runs the job that args[0] names with the words after it. `--help` or -h lists the jobs on stdout. No name and an
/// unknown name are ConfigErrors that name the nearest one. `command` is what precedes the name: "megatron", or
/// "megatron tokenizer" in a job that has jobs of its own:
///
///   int tokenizer(const Args& args) {
///     return dispatch("megatron tokenizer", {{"train", "Learn a vocabulary.", train}, {"encode", …}}, args);
///   }
int dispatch(const std::string& command, const std::vector<Job>& jobs, const Args& args);

/// What main() returns: dispatch() with the words of the command line, and what it throws on stderr. Lets what is
/// printed reach its file, or says why it does not, and ends the process.
[[noreturn]] void run_program(const std::vector<Job>& jobs, int argc, char** argv);

/// Becomes megatron-torch, which runs the job that words[0] names: does not return. megatron-torch is in the folder of
/// this program, as built, or in ../lib/megatron of it, as installed. Throws std::runtime_error where it is in neither.
[[noreturn]] int run_with_libtorch(const Args& words);

/// run_with_libtorch() for a job, whose `names` come before its words, once `check` (null: none) finds nothing wrong
/// with `args`. On a rank of a launcher megatron-torch alone checks: what is wrong it tells the others, for which it
/// must meet them.
[[noreturn]] int run_with_libtorch(Args names, const Args& args, Check check);

int bench(const Args& args);
int checkpoint(const Args& args);
int data(const Args& args);
int doctor(const Args& args);
int docs(const Args& args);
int eval(const Args& args);
int finetune(const Args& args);
int generate(const Args& args);
int run_supervised(const Args& args);
/// A job that trains: by run_with_libtorch(), or supervised as its words ask (--restart, --inprocess-restart).
int run_training(const std::string& job, const Args& args, Check check);
int serve(const Args& args);
int sweep(const Args& args);
int chat(const Args& args);
int operators(const Args& args);
int plan(const Args& args);
int plot(const Args& args);
int preprocess_data(const Args& args);
int pretrain_bert(const Args& args);
int pretrain_gpt(const Args& args);
int pretrain_t5(const Args& args);
int tokenizer(const Args& args);
int train(const Args& args);
int version(const Args& args);
int watch(const Args& args);

}  // namespace megatron::app
