#include "megatron/base/error.h"
#include "megatron/plan/model_kind.h"

// BERT (Devlin et al. 2018; Megatron-LM's): one stack whose tokens see all others, embeddings of segments, a head for
// masked tokens, and one that tells the order of two segments.
namespace megatron::models::bert {
namespace {

void check(const config::ModelConfig& model, plan::Rules& rules) {
  rules.require(!model.bert_binary_head || model.num_tokentypes != 1,
                "model.bert_binary_head has samples of two segments: model.num_tokentypes 2, or 0.",
                concat("num_tokentypes ", model.num_tokentypes), "--model.bert_binary_head false");
}

void describe(const config::ModelConfig& model, plan::ModelShape& shape) {
  shape.causal = false;
  shape.token_types = model.num_tokentypes;
  shape.sentence_head = shape.predicts_tokens() && model.bert_binary_head;
  shape.masked_lm_head = shape.pooled_tasks = true;
  shape.masked_lm_bias = model.masked_lm_bias;
}

}  // namespace

extern const plan::ModelKind kPlan;
constinit const plan::ModelKind kPlan{.check = check, .describe = describe};

}  // namespace megatron::models::bert
