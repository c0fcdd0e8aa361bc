#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "app/jobs.h"
#include "megatron/base/error.h"
#include "megatron/base/mapped_faults.h"
#include "megatron/base/out_of_memory.h"
#include "megatron/base/printable.h"
#include "megatron/base/write_error.h"
#include "megatron/config/options.h"

namespace {

namespace app = megatron::app;

// The order is the one in which a new user meets them.
const std::vector<app::Job> kJobs = {
    {"doctor", "What this machine offers.", app::doctor},
    {"tokenizer", "Learns a vocabulary; text to ids and back.", app::tokenizer},
    {"data", "Turns text into tokens and looks into the files.", app::data},
    {"train", "Trains a model from a recipe; goes on by itself.", app::train},
    {"finetune", "Teaches a trained model a task; seeds, ensembles, predictions.", app::finetune},
    {"eval", "Loss and perplexity of a text under a trained model.", app::eval},
    {"generate", "Writes on from a prompt with a trained model.", app::generate},
    {"checkpoint", "Looks into checkpoints and checks them.", app::checkpoint},
    {"plan", "Groups, memory and arithmetic of a recipe, without running it.", app::plan},
    {"plot", "Draws the curves of runs beside one another.", app::plot},
    {"bench", "Measures this machine with the program's own parts.", app::bench},
    {"docs", "Prints the generated parts of docs/.", app::docs},
    {"version", "The versions of the program and of libtorch; also --version.", app::version},
};

int run(const app::Args& args) {
  try {
    if (args == app::Args{"--version"}) return app::version({});
    return app::dispatch("megatron", kJobs, args);
  } catch (const megatron::config::HelpRequested& help) {
    std::fputs(help.what(), stdout);
    return app::kDone;
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
