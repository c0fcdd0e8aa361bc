#pragma once
#include <cstdint>
#include <string>

#include "app/jobs.h"
#include "megatron/config/options.h"

namespace megatron::app {

/// The options of `megatron checkpoint import`.
struct CheckpointImportFlags {
  std::string from, output;
  std::string dtype;  ///< once it is parsed, as config.json names it; "": each tensor's
  bool weights_only = false;
  void visit(auto& v) {
    v("from", from, "Hugging Face folder, Megatron-LM's checkpoint folder, or a GGUF file.", config::Required());
    v("output", output,
      "Folder to write: checkpoints, with one of the iteration at which the run stood, of weights alone 0.",
      config::Required());
    v("dtype", dtype,
      "Data type of the weights: fp32, bf16 or fp16; empty: as they are. With it the weights alone are taken.");
    v("weights_only", weights_only, "Leave out the optimizer's state and the counters: a checkpoint of iteration 0.");
  }
};

// The help of options of export, which depends on what formats there are.
std::string export_outputs();
std::string export_formats();
std::string export_dtypes();

/// The options of `megatron checkpoint export`.
struct CheckpointExportFlags {
  std::string load, output;
  std::string format;  ///< once it is parsed, FormatWords::name
  std::string dtype;   ///< once it is parsed, as config.json names it, or of the format's own; "": each tensor's
  bool weights_only = false;
  std::int64_t padded_vocab_size = 0;
  void visit(auto& v) {
    v("load", load, "Folder of a run, of its checkpoints, or one checkpoint.", config::Required());
    v("output", output, export_outputs());
    v("format", format, export_formats());
    v("dtype", dtype, export_dtypes());
    v("weights_only", weights_only, "torch_dist: leave out the state of training.");
    v("padded_vocab_size", padded_vocab_size,
      "torch_dist, of a BERT or a T5: rows of the vocabulary, as Megatron-LM pads it; 0: one for each token.");
  }
};

// What the words say. Each throws HelpRequested, and ConfigError for what is wrong whatever the folders hold.
CheckpointImportFlags checkpoint_import_flags(const Args& args);
CheckpointExportFlags checkpoint_export_flags(const Args& args);

}  // namespace megatron::app
