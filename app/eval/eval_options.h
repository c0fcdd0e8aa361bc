#pragma once
#include <cstdint>
#include <string>

#include "app/jobs.h"
#include "megatron/config/options.h"
#include "megatron/config/tables/tasks.h"
#include "megatron/recipe/model_flags.h"

namespace megatron::app {

/// The options of all jobs of `megatron eval` that compute with a model.
struct EvalFlags : recipe::ModelFlags {
  std::string adapter, data;
  std::int64_t limit = 0, batch_size = 0;
  std::string progress = "auto";
  bool json = false;

  EvalFlags() { dp = 0; }

  void visit(auto& v) {
    recipe::ModelFlags::visit(v);
    recipe::visit_adapter(v, adapter);
    v("dp", dp, "Data-parallel size: ranks that share the windows or examples; 0: world_size / (tp x pp), or 1.");
    v("data", data, "File to score.", config::Required(), config::Common());
    v("limit", limit, "Only the first N windows or examples; 0: all.", config::Common());
    v("batch_size", batch_size, "Windows or examples per batch; 0: as many as hold 4096 tokens.", config::Common());
    v("progress", progress, "Progress with rate and ETA; auto: on a terminal.", config::RanksMayDiffer(),
      config::Choices({"auto", "on", "off"}));
    v("json", json, "Print one JSON object on stdout.", config::Common());
  }
};

/// The options of `megatron eval loss`.
struct TextFlags : EvalFlags {
  std::int64_t window = 0, stride = 0, limit_tokens = 0;
  bool detokenize = false;

  void visit(auto& v) {
    EvalFlags::visit(v);
    v("window", window,
      "Tokens per window, of which the last is only predicted; 0: 1024, --paper 1025, or what the model holds.",
      config::Common());
    v("stride", stride, "Tokens between the starts of windows; 0: window.", config::Common());
    v("limit_tokens", limit_tokens, "Only the first N tokens; 0: all.", config::Common());
    v("detokenize", detokenize, "Undo WikiText's tokenization first: \" @-@ \", spaces before punctuation.",
      config::Common());
  }
};

/// The options of `megatron eval wikitext`.
struct WikitextFlags : TextFlags {
  bool paper = false;

  void visit(auto& v) {
    TextFlags::visit(v);
    v("paper", paper, "The paper's protocol: without white space at the ends, detokenized; stride 32 unless given.",
      config::Common());
  }
};

/// The options of `megatron eval lambada`.
struct LambadaFlags : EvalFlags {
  std::string format = "auto";

  void visit(auto& v) {
    EvalFlags::visit(v);
    v("format", format, "Format of the data: jsonl has {\"text\": …} per line, lines (or plain) a passage per line.",
      config::Choices({"auto", "jsonl", "lines", "plain"}));
  }
};

/// The options of `megatron eval mnli` and of the other tasks of `megatron finetune`.
struct TaskFlags : EvalFlags {
  std::string output;
  std::int64_t seq_length = 0, doc_stride = 0, max_query_length = 0, n_best = 0, max_answer_length = 0;

  void visit(auto& v) {
    EvalFlags::visit(v);
    v("output", output, "Folder for the predictions, new or empty; empty: none are written.");
    v("seq_length", seq_length,
      "Maximum tokens per row; 0: as in the fine-tuning, else " + config::usual_lengths(&config::TaskRow::seq_length) +
          ".");
    v("doc_stride", doc_stride,
      "squad: tokens from the beginning of one window of a context to that of the next; 0: as in the fine-tuning, else "
      "128.");
    v("max_query_length", max_query_length,
      "Maximum tokens per question; 0: as in the fine-tuning, else " +
          config::usual_lengths(&config::TaskRow::query_length) + ".");
    v("n_best", n_best,
      "squad: answers in nbest_predictions.json, and starts and ends considered per window; 0: as in the fine-tuning, "
      "else 20.");
    v("max_answer_length", max_answer_length, "squad: maximum tokens per answer; 0: as in the fine-tuning, else 30.");
  }
};

// What the words say. Each throws HelpRequested, and ConfigError for what is wrong whatever the model is.
TextFlags eval_loss_flags(const Args& args);
WikitextFlags eval_wikitext_flags(const Args& args);
LambadaFlags eval_lambada_flags(const Args& args);
EvalFlags eval_choice_flags(const Args& args);
/// `task`: of tasks::task_kind_of(), or "squad", whose version the file tells.
TaskFlags eval_task_flags(const std::string& task, const Args& args);

}  // namespace megatron::app
