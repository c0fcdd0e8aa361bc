#include "megatron/plan/model_kind.h"

// BERT (Devlin et al. 2018; Megatron-LM's): one stack whose tokens see all others, embeddings of segments, a head for
// masked tokens, and one that tells the order of two segments.
namespace megatron::models::bert {
namespace {

void describe(const config::ModelConfig& model, plan::ModelShape& shape) {
  shape.causal = false;
  shape.token_types = model.num_tokentypes;
  shape.sentence_head = shape.predicts_tokens() && model.bert_binary_head;
  shape.masked_lm_head = shape.pooled_tasks = true;
}

}  // namespace

extern const plan::ModelKind kPlan;
constinit const plan::ModelKind kPlan{.describe = describe};

}  // namespace megatron::models::bert
