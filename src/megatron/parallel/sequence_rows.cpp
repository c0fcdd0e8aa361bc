#include "megatron/parallel/sequence_rows.h"

namespace megatron::parallel {

void place_rows(kernels::Dropout& dropout, const plan::SequenceShare& share, std::int64_t rows) {
  if (share.ranks == 1) return;
  const auto pieces = share.pieces(rows * share.ranks);
  const std::int64_t gap = pieces[1].begin - pieces[0].end;
  const std::int64_t left = pieces[0].size() - dropout.position_offset;  // rows of the first piece
  if (left > 0) {
    dropout.jump_at = left;
    dropout.jump = gap;
  }
  dropout.position_offset += pieces[0].begin + (left > 0 ? 0 : gap);
}

}  // namespace megatron::parallel
