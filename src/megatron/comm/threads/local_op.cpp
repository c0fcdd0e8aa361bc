#include "megatron/comm/threads/local_op.h"

#include <algorithm>
#include <cstring>

#include "megatron/base/error.h"
#include "megatron/comm/threads/local_reduce.h"

namespace megatron::comm {
namespace {

std::string describe(const OpCall& call) {
  std::string text = to_string(call.kind);
  if (call.kind == OpKind::Broadcast) text += concat(" from ", call.root);
  if (call.op == ReduceOp::Max) text += " (max)";
  const at::Tensor& t = call.in.defined() ? call.in : call.out;
  return t.defined() ? concat(text, " of ", c10::toString(t.scalar_type()), " ", t.sizes()) : text;
}

bool same_shape(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || (a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes()));
}

void copy_bytes(void* to, std::int64_t to_offset, const void* from, std::int64_t from_offset, std::int64_t n) {
  char* target = static_cast<char*>(to) + to_offset;
  const char* source = static_cast<const char*>(from) + from_offset;
  if (target != source) std::memcpy(target, source, static_cast<std::size_t>(n));  // equal in an in-place gather
}

}  // namespace

const char* to_string(OpKind kind) {
  switch (kind) {
    case OpKind::AllReduce:
      return "all_reduce";
    case OpKind::AllGather:
      return "all_gather";
    case OpKind::ReduceScatter:
      return "reduce_scatter";
    case OpKind::Broadcast:
      return "broadcast";
    case OpKind::AllToAll:
      return "all_to_all";
    case OpKind::SendRecv:
      return "send/recv";
    case OpKind::Barrier:
      return "barrier";
  }
  return "";
}

LocalOp::LocalOp(std::string name, int participants)
    : name_(std::move(name)),
      calls_(static_cast<std::size_t>(participants)),
      present_(static_cast<std::size_t>(participants)) {}

bool LocalOp::arrive(int participant, OpCall call) {
  const auto slot = static_cast<std::size_t>(participant);
  calls_[slot] = std::move(call);
  present_[slot].store(true);
  if (num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < static_cast<int>(calls_.size())) return false;
  check_arguments();
  if (mismatch_.empty()) plan();
  State expected = State::Gathering;
  state_.compare_exchange_strong(expected, State::Ready, std::memory_order_acq_rel);
  return true;
}

bool LocalOp::give_up() {
  State expected = State::Gathering;
  return state_.compare_exchange_strong(expected, State::GivenUp, std::memory_order_acq_rel) ||
         expected == State::GivenUp;
}

bool LocalOp::abandon(int participant) {
  if (!give_up()) return false;
  present_[static_cast<std::size_t>(participant)].store(false);
  return true;
}

void LocalOp::release(int participant) {
  OpCall& call = calls_[static_cast<std::size_t>(participant)];
  call.in.reset();
  call.out.reset();
}

void LocalOp::check_arguments() {
  const OpCall& first = calls_[0];
  bool fits = true, shared = false;
  for (std::size_t r = 1; r < calls_.size(); ++r) {
    const OpCall& call = calls_[r];
    fits = fits && call.kind == first.kind && call.op == first.op && call.root == first.root;
    if (first.kind == OpKind::SendRecv) {  // one brings `in`, the other `out`
      fits = fits && same_shape(first.in.defined() ? first.in : first.out, call.in.defined() ? call.in : call.out);
    } else {
      fits = fits && same_shape(call.in, first.in) && same_shape(call.out, first.out);
    }
    for (std::size_t q = 0; q < r; ++q)
      shared = shared || (call.out.defined() && calls_[q].out.defined() && call.out.numel() > 0 &&
                          call.out.const_data_ptr() == calls_[q].out.const_data_ptr());
  }
  if (!fits) {
    std::string got;
    for (std::size_t r = 0; r < calls_.size(); ++r) got += concat(r ? "; " : "", "rank ", r, ": ", describe(calls_[r]));
    mismatch_ = rule_got_fix("Every rank of a group must call the same collective with equal shapes and dtypes.", got);
  } else if (shared) {
    mismatch_ =
        rule_got_fix("Each rank must bring a tensor of its own.", "two ranks brought the same memory to " + name_);
  } else if ((first.kind == OpKind::AllReduce || first.kind == OpKind::ReduceScatter) &&
             !can_reduce(first.in.scalar_type())) {
    mismatch_ = rule_got_fix("Only real numbers can be reduced.", describe(first));
  }
}

void LocalOp::plan() {
  const auto n = static_cast<std::int64_t>(calls_.size());
  const OpCall& first = calls_[0];
  if (first.kind == OpKind::Barrier) return;
  const at::Tensor& t = first.in.defined() ? first.in : first.out;
  const bool sums = first.kind == OpKind::AllReduce || first.kind == OpKind::ReduceScatter;
  std::int64_t rows = 1;
  row_length_ = sums ? t.numel() : static_cast<std::int64_t>(t.nbytes());
  if (first.kind == OpKind::AllGather) rows = n;
  if (first.kind == OpKind::ReduceScatter) rows = n, row_length_ /= n;
  if (first.kind == OpKind::AllToAll) rows = n * n, row_length_ /= n;
  if (row_length_ == 0) return;
  for (const OpCall& call : calls_) {
    in_.push_back(call.in.defined() ? call.in.const_data_ptr() : nullptr);
    out_.push_back(call.out.defined() ? call.out.data_ptr() : nullptr);
  }
  // Pieces of whole cache lines, about 8 a rank, within what keeps both the counters and the caches cool.
  const std::int64_t unit = sums ? static_cast<std::int64_t>(t.element_size()) : 1;
  const std::int64_t piece_bytes = std::clamp<std::int64_t>(rows * row_length_ * unit / (8 * n), 16 << 10, 128 << 10);
  piece_length_ = piece_bytes / 64 * 64 / unit;
  pieces_per_row_ = (row_length_ + piece_length_ - 1) / piece_length_;
  num_pieces_ = rows * pieces_per_row_;
}

std::int64_t LocalOp::work(std::int64_t limit) {
  std::int64_t done = 0;
  // Looking before taking keeps late comers from pushing the counter without end.
  while (done < limit && next_piece_.load(std::memory_order_relaxed) < num_pieces_) {
    const std::int64_t piece = next_piece_.fetch_add(1, std::memory_order_relaxed);
    if (piece >= num_pieces_) break;
    run_piece(piece);
    pieces_done_.fetch_add(1, std::memory_order_acq_rel);
    ++done;
  }
  return done;
}

std::int64_t LocalOp::share() const {
  const auto n = static_cast<std::int64_t>(calls_.size());
  return (num_pieces_ + n - 1) / n;
}

void LocalOp::run_piece(std::int64_t piece) const {
  const std::int64_t row = piece / pieces_per_row_, begin = piece % pieces_per_row_ * piece_length_;
  const std::int64_t end = std::min(begin + piece_length_, row_length_);
  const OpKind kind = calls_[0].kind;
  if (kind == OpKind::AllReduce || kind == OpKind::ReduceScatter) {
    reduce_row(row, begin, end);
  } else {
    copy_row(row, begin, end);
  }
}

void LocalOp::reduce_row(std::int64_t row, std::int64_t begin, std::int64_t end) const {
  const OpCall& first = calls_[0];
  const at::ScalarType dtype = first.in.scalar_type();
  if (first.kind == OpKind::AllReduce) return reduce_in_order(dtype, first.op, in_, out_, begin, end);
  // Row r of every input is summed into rank r's output.
  const auto offset = row * row_length_ * static_cast<std::int64_t>(first.in.element_size());
  std::vector<const void*> rows(in_);
  for (const void*& p : rows) p = static_cast<const char*>(p) + offset;
  reduce_in_order(dtype, first.op, rows, {out_[static_cast<std::size_t>(row)]}, begin, end);
}

void LocalOp::copy_row(std::int64_t row, std::int64_t begin, std::int64_t end) const {
  const auto n = static_cast<std::int64_t>(calls_.size());
  const std::int64_t length = end - begin;
  switch (calls_[0].kind) {
    case OpKind::AllGather:
      for (void* out : out_)
        copy_bytes(out, row * row_length_ + begin, in_[static_cast<std::size_t>(row)], begin, length);
      break;
    case OpKind::Broadcast:
      for (void* out : out_) copy_bytes(out, begin, in_[static_cast<std::size_t>(calls_[0].root)], begin, length);
      break;
    case OpKind::AllToAll: {
      const std::int64_t to = row / n, from = row % n;
      copy_bytes(out_[static_cast<std::size_t>(to)], from * row_length_ + begin, in_[static_cast<std::size_t>(from)],
                 to * row_length_ + begin, length);
      break;
    }
    case OpKind::SendRecv:
      copy_bytes(out_[1], begin, in_[0], begin, length);
      break;
    case OpKind::AllReduce:
    case OpKind::ReduceScatter:
    case OpKind::Barrier:
      break;  // they copy nothing
  }
}

}  // namespace megatron::comm
