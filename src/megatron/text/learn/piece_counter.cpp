#include "megatron/text/learn/piece_counter.h"

#include <exception>
#include <mutex>
#include <thread>

#include "megatron/text/split/pretokenize.h"

namespace megatron::text {

PieceCounter::PieceCounter() : table_(std::size_t{1} << 14), shift_(64 - 14) {}

void PieceCounter::grow() {
  std::vector<Entry> old(table_.size() * 2);
  old.swap(table_);
  --shift_;
  for (const Entry& entry : old) {
    if (entry.count == 0) continue;
    std::size_t slot = entry.key.hash() >> shift_;
    while (table_[slot].count != 0) slot = (slot + 1) & (table_.size() - 1);
    table_[slot] = entry;
  }
}

void PieceCounter::add_short(const PieceKey& key, std::uint64_t count) {
  for (std::size_t slot = key.hash() >> shift_;; slot = (slot + 1) & (table_.size() - 1)) {
    Entry& entry = table_[slot];
    if (entry.count == 0) {
      entry = {key, count};
      if (++used_ * 2 > table_.size()) grow();
      return;
    }
    if (entry.key == key) {
      entry.count += count;
      return;
    }
  }
}

void PieceCounter::merge(const PieceCounter& other) {
  for (const Entry& entry : other.table_)
    if (entry.count != 0) add_short(entry.key, entry.count);
  for (const auto& [piece, count] : other.long_) long_[piece] += count;
}

void PieceCounter::for_each(const std::function<void(std::string_view, std::uint64_t)>& visit) const {
  for (const Entry& entry : table_) {
    if (entry.count == 0) continue;
    char bytes[16];
    std::memcpy(bytes, &entry.key, 16);
    visit({bytes, static_cast<std::size_t>(entry.key.hi >> 56)}, entry.count);
  }
  for (const auto& [piece, count] : long_) visit(piece, count);
}

void count_gpt2_pieces(std::string_view document, PieceCounter& counter) {
  const char* const end = document.data() + document.size();
  for_each_piece(document, [&](const char* p, std::size_t size) {
    counter.add({p, size}, static_cast<std::size_t>(end - p));
  });
}

PieceCounter count_pieces(const std::function<bool(std::string&)>& next, int threads, const CountPieces& cut) {
  std::vector<PieceCounter> counters(static_cast<std::size_t>(threads));
  std::mutex mutex;
  std::exception_ptr failure;
  bool ended = false;
  const auto work = [&](PieceCounter& counter) {
    std::string document;
    try {
      while (true) {
        {
          const std::lock_guard lock(mutex);
          ended = ended || !next(document);
          if (ended) return;
        }
        cut(document, counter);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      ended = true;
    }
  };
  {
    std::vector<std::jthread> workers;
    for (std::size_t i = 1; i < counters.size(); ++i) workers.emplace_back(work, std::ref(counters[i]));
    work(counters[0]);
  }
  if (failure) std::rethrow_exception(failure);
  for (std::size_t i = 1; i < counters.size(); ++i) counters[0].merge(counters[i]);
  return std::move(counters[0]);
}

}  // namespace megatron::text
