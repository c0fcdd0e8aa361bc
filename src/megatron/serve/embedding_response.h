#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "megatron/serve/api/api_error.h"
#include "megatron/serve/http/server.h"
#include "megatron/serve/metrics.h"
#include "megatron/serve/task.h"

namespace megatron::serve {

/// The response to one request for embeddings: its texts are listeners, and what they hear is sent once all have heard.
class EmbeddingResponse : public std::enable_shared_from_this<EmbeddingResponse> {
 public:
  /// `queue` takes the texts, and must outlive this.
  EmbeddingResponse(std::string model, bool base64, std::shared_ptr<Reply> reply, Metrics& metrics, TaskQueue& queue)
      : model_(std::move(model)), base64_(base64), reply_(std::move(reply)), metrics_(metrics), queue_(queue) {}

  /// Asks for the vectors of `tasks`, which have no listeners, in turns: `most` of them wait at a time, so that a
  /// request of many texts leaves room for others. Once. Throws as TaskQueue::submit() where the first do not get in.
  void ask(std::vector<TextTask> tasks, std::size_t most);

 private:
  class Text;

  void heard(std::size_t index, const std::vector<float>& embedding);
  void failed(const ApiError& error);
  TextTask next_task();
  void submit_more();
  void fail(const ApiError& error);

  std::string model_;
  bool base64_;
  std::shared_ptr<Reply> reply_;
  Metrics& metrics_;
  TaskQueue& queue_;
  std::mutex mutex_;  ///< texts that wait may be ended by another thread than that which computes
  std::vector<TextTask> tasks_;
  std::vector<std::vector<float>> embeddings_;
  std::size_t most_ = 0, submitted_ = 0, heard_ = 0;
  std::int64_t tokens_ = 0;
  std::atomic<bool> failed_{false};
};

}  // namespace megatron::serve
