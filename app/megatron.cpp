#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "app/jobs.h"
#include "megatron/base/error.h"
#include "megatron/base/files/mapped_faults.h"
#include "megatron/base/files/write_error.h"
#include "megatron/base/machine/out_of_memory.h"
#include "megatron/base/text/printable.h"

namespace {

namespace app = megatron::app;

// The order is the one in which a new user meets them.
const std::vector<app::Job> kJobs = {
    {"doctor", "Shows what this machine offers.", app::doctor},
    {"tokenizer", "Trains tokenizers; converts text to ids and back.", app::tokenizer},
    {"data", "Filters and tokenizes text; shows token files.", app::data},
    {"train", "Trains a model from a recipe; resumes by itself.", app::train},
    {"pretrain_gpt", "Trains with the arguments of Megatron-LM's pretrain_gpt.py.", app::pretrain_gpt},
    {"pretrain_bert", "Trains with the arguments of Megatron-LM's pretrain_bert.py.", app::pretrain_bert},
    {"pretrain_t5", "Trains with the arguments of Megatron-LM's pretrain_t5.py.", app::pretrain_t5},
    {"preprocess_data", "Tokenizes with the arguments of its preprocess_data.py.", app::preprocess_data},
    {"finetune", "Fine-tunes a model on a task; seeds, ensembles, predictions.", app::finetune},
    {"eval", "Evaluates a model: loss, perplexity, WikiText, LAMBADA, tasks.", app::eval},
    {"generate", "Generates text from prompts.", app::generate},
    {"checkpoint", "Inspects, verifies, converts, imports and exports checkpoints.", app::checkpoint},
    {"plan", "Shows groups, schedule, memory and FLOPs of a recipe without running it.", app::plan},
    {"plot", "Draws the curves of several runs.", app::plot},
    {"bench", "Benchmarks on this machine.", app::bench},
    {"docs", "Prints the generated parts of docs/.", app::docs},
    {"version", "Prints the versions of the program and of libtorch; also --version.", app::version},
};

int run(const app::Args& args) {
  try {
    if (args == app::Args{"--version"}) return app::version({});
    return app::dispatch("megatron", kJobs, args);
  } catch (const megatron::ConfigError& error) {
    megatron::write_line(stderr, megatron::message_of(error));
    return app::kWrong;
  } catch (const std::exception& error) {
    megatron::write_line(stderr, megatron::message_of(error));
    return app::kFailed;
  }
}

}  // namespace

int main(int argc, char** argv) {
  megatron::let_large_writes_fail();
  megatron::explain_mapped_faults();
  const int code = run({argv + 1, argv + argc});
  // What is printed waits in a buffer: that the disk is full or the reader gone shows only here. Where a job has met
  // it before, an empty line asks for the reason again.
  errno = 0;
  const bool had_failed = std::ferror(stdout) != 0;
  if (had_failed) std::fputc('\n', stdout);
  const bool written = std::fflush(stdout) == 0 && !had_failed;
  if (!written)
    megatron::write_line(stderr,
                         megatron::write_error("standard output", "could not be written", errno != 0 ? errno : EIO));
  // All that a job has is given back by now. What is left are libtorch's tables of operators, which take 0.07 s apart.
  std::_Exit(!written && code == app::kDone ? app::kFailed : code);
}
