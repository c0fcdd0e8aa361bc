#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "app/front/front.h"
#include "megatron/base/error.h"
#include "megatron/families/folder.h"
#include "megatron/tasks/task.h"
#include "megatron/text/files/tokenizer_files.h"

namespace megatron::app {
namespace {

/// Throws ConfigError for rules that the run breaks. Whether it breaks some is asked with as many tokens as the model
/// has rows: its tokenizer takes longer to read than all rules.
void check_rules(const recipe::ModelFlags& flags, const config::RunConfig& run, const char* job) {
  try {
    recipe::resolve_forward(flags, run, std::max<std::int64_t>(1, run.model.vocab_size), std::nullopt, job);
  } catch (const ConfigError&) {
    const auto tokenizer = recipe::forward_tokenizer(flags, companions_of(flags.load), {}, job);
    recipe::resolve_forward(flags, run, recipe::forward_rows(flags, run.model.vocab_size, tokenizer), std::nullopt,
                            job);
  }
}

}  // namespace

std::string companions_of(const std::string& folder) { return text::tokenizer_file(folder) ? folder : ""; }

void check_model(const recipe::ModelFlags& flags, const char* job, recipe::Writes writes) {
  if (const auto model = families::network_of_folder(flags.load)) check_model(flags, *model, job, writes);
}

void check_model(const recipe::ModelFlags& flags, const config::ModelConfig& model, const char* job,
                 recipe::Writes writes) {
  recipe::check_writes(model, flags.load, job, writes);
  config::RunConfig run = recipe::forward_config(model);
  run.train.micro_batch_size = 1;
  check_rules(flags, run, job);
}

void check_task_model(const TaskFlags& flags, const std::string& task) {
  const auto model = families::network_of_folder(flags.load);
  if (!model) return;
  const tasks::TaskKind kind = tasks::task_kind_of(task);
  const tasks::TaskForm form = tasks::task_form(kind);
  config::RunConfig run = recipe::forward_config(*model);
  recipe::set_task(run,
                   {.head = form.head,
                    .num_classes = form.num_classes,
                    .seq_length = flags.seq_length,
                    .usual_length = tasks::usual_seq_length(kind),
                    .microbatch_size = flags.batch_size},
                   /*trained_here=*/false, flags, "eval");
  check_rules(flags, run, "eval");
}

void check_serve(const Args& args) {
  const ServeFlags flags = serve_flags(args);
  const auto model = families::network_of_folder(flags.load);
  if (!model) return;
  const bool encoder = recipe::is_encoder(*model);
  if (encoder && (flags.pp > 1 || !flags.adapters.empty())) return;  // megatron-torch says that it takes neither
  check_model(flags, *model, "serve", encoder ? recipe::Writes::Embeddings : recipe::Writes::Texts);
}

}  // namespace megatron::app
