#include "megatron/interchange/megatron_lm/dist/padded_source.h"

#include <algorithm>
#include <string_view>

namespace megatron::interchange {
namespace {

constexpr std::string_view kOutputBias = "output_layer.bias";

/// Whether the tensor has a row per token, in the state of an optimizer ("optimizer.exp_avg.output_layer.bias") too.
bool has_vocabulary(std::string_view tensor) {
  return tensor.ends_with("embedding.word_embeddings.weight") || tensor.ends_with("output_layer.weight") ||
         tensor.ends_with(kOutputBias);
}

}  // namespace

PaddedSource::PaddedSource(const checkpoint::WeightSource& raw, std::int64_t rows) : raw_(raw), rows_(rows) {}

const std::vector<std::int64_t>* PaddedSource::shape(const std::string& tensor) const {
  const std::vector<std::int64_t>* const stored = raw_.shape(tensor);
  if (stored == nullptr || !has_vocabulary(tensor)) return stored;
  std::vector<std::int64_t>& padded = shapes_[tensor];
  padded = *stored;
  padded.at(0) = std::max(rows_, padded.at(0));
  return &padded;
}

void PaddedSource::read(const std::string& tensor, const checkpoint::Box& box, const at::Tensor& into) const {
  if (!has_vocabulary(tensor)) return raw_.read(tensor, box, into);
  const std::int64_t begin = box.offset.at(0), rows = box.shape.at(0);
  const std::int64_t here = std::clamp<std::int64_t>(raw_.shape(tensor)->at(0) - begin, 0, rows);
  if (here > 0) {
    checkpoint::Box stored = box;
    stored.shape[0] = here;
    raw_.read(tensor, stored, into.narrow(0, 0, here));
  }
  if (here < rows) into.narrow(0, here, rows - here).fill_(tensor == kOutputBias ? kPaddingBias : 0);
}

}  // namespace megatron::interchange
