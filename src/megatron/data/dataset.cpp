#include "megatron/data/dataset.h"

#include <stdexcept>

#include "megatron/base/error.h"

namespace megatron::data {

void check_spans(const Sample& out, std::int64_t seq_length) {
  const auto n = static_cast<std::size_t>(seq_length);
  const auto fits = [n](const auto& span) { return span.empty() || span.size() == n; };
  if (!fits(out.tokens) || !fits(out.labels) || !fits(out.loss_mask) || !fits(out.position_ids) ||
      !fits(out.first_key) || !fits(out.types))
    throw std::logic_error(concat("a sample's spans must have ", n, " elements"));
}

}  // namespace megatron::data
