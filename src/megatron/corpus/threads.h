#pragma once
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>

#include "megatron/base/machine/parallel.h"
#include "megatron/data/files/text_reader.h"

// Work on many threads whose result does not depend on how many there are.
namespace megatron::corpus {

/// Called now and then: bytes read, all bytes (0: not known).
using OnProgress = std::function<void(std::int64_t, std::int64_t)>;

/// A block of a corpus and which of its documents is the first.
struct CorpusBlock {
  data::TextBlock text;
  std::int64_t first_document = 0;
};

/// Takes each block of `reader` through `work(block, result)` on one of `workers` threads and then through
/// `consume(block, result)`, in the order of the input and one at a time. Each thread has its own work, made by
/// `make_work()`, and its own Result, which work() fills again. A thread reads a block, works on it and waits for its
/// turn, so as many blocks are in memory as there are threads. Of several blocks that throw, the first in the order of
/// the input decides; nothing after it is consumed. Returns the number of documents (records).
template <class Result, class MakeWork, class Consume>
std::int64_t for_each_block(data::BlockReader& reader, int workers, MakeWork&& make_work, Consume&& consume) {
  struct {
    std::mutex reading, turns;
    std::condition_variable turn;
    std::int64_t read = 0, consumed = 0, documents = 0;
    bool ended = false;
  } state;
  // One thread more than cores do work: one may be waiting for its turn.
  const int threads = workers > 1 ? workers + 1 : 1;
  for_each_on_threads(static_cast<std::size_t>(threads), threads, [&](std::size_t, std::size_t) {
    auto work = make_work();
    CorpusBlock block;
    Result result{};
    for (;;) {
      std::int64_t mine = 0;
      std::exception_ptr error;
      {
        const std::lock_guard lock(state.reading);
        if (state.ended) return;
        mine = state.read++;
        block.first_document = state.documents;
        try {
          if (!reader.next(block.text)) {
            state.ended = true;
            return;
          }
          state.documents += static_cast<std::int64_t>(block.text.records.size());
        } catch (...) {
          error = std::current_exception();
          state.ended = true;
        }
      }
      try {
        if (!error) work(static_cast<const CorpusBlock&>(block), result);
      } catch (...) {
        error = std::current_exception();
      }
      std::unique_lock lock(state.turns);
      state.turn.wait(lock, [&] { return state.consumed == mine || state.consumed < 0; });
      if (state.consumed < 0) return;  // a block before this one failed
      try {
        if (error) std::rethrow_exception(error);
        consume(static_cast<const CorpusBlock&>(block), result);
        ++state.consumed;
        state.turn.notify_all();
      } catch (...) {
        state.consumed = -1;
        state.turn.notify_all();
        lock.unlock();
        const std::lock_guard reading(state.reading);
        state.ended = true;
        throw;
      }
    }
  });
  return state.documents;
}

}  // namespace megatron::corpus
