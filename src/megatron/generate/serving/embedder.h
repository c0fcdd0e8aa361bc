#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "megatron/comm/group.h"
#include "megatron/interchange/hugging_face/pooling.h"
#include "megatron/model/decoding/score.h"
#include "megatron/serve/metrics.h"
#include "megatron/serve/task.h"

namespace megatron::generate {

/// Makes vectors of the texts of a server's queue, one text after the other: what one gets does not depend on the
/// others. The ranks of tp hold the model together; the first calls run(), the others follow().
class Embedder {
 public:
  /// `model`: the whole of an encoder; `world`: all ranks.
  Embedder(const model::ScoringGpt& model, comm::Group world, at::Device device, interchange::TextPooling pooling)
      : model_(model), world_(std::move(world)), device_(device), pooling_(pooling) {}

  /// The vector of one text's tokens. Collective over `world`, whose ranks all call it.
  std::vector<float> embed(const std::vector<std::int64_t>& tokens) const;

  /// Answers the tasks of `queue` until it is stopped.
  void run(serve::TaskQueue& queue, serve::Metrics& metrics) const;
  /// Does what the first rank does, until that is done.
  void follow() const;

 private:
  void tell(const std::vector<std::int64_t>& tokens) const;

  const model::ScoringGpt& model_;
  comm::Group world_;
  at::Device device_;
  interchange::TextPooling pooling_;
};

}  // namespace megatron::generate
