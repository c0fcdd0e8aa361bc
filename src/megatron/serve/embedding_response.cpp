#include "megatron/serve/embedding_response.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "megatron/serve/api/responses.h"
#include "megatron/serve/error_response.h"

namespace megatron::serve {
namespace {

constexpr const char* kEmbeddingPath = "/v1/embeddings";

}  // namespace

class EmbeddingResponse::Text : public TextListener {
 public:
  Text(std::shared_ptr<EmbeddingResponse> response, std::size_t index)
      : response_(std::move(response)), index_(index) {}

  void on_embedding(const std::vector<float>& embedding) override { response_->heard(index_, embedding); }
  bool on_token(const ScoredToken& /*token*/) override { throw std::logic_error("an embedding has no tokens"); }
  void on_end(Finish /*finish*/) override { throw std::logic_error("an embedding ends with its vector"); }
  void on_error(int status, const std::string& message) override { response_->failed(text_error(status, message)); }
  bool gone() const override { return response_->failed_ || response_->reply_->gone(); }

 private:
  std::shared_ptr<EmbeddingResponse> response_;
  std::size_t index_;
};

void EmbeddingResponse::ask(std::vector<TextTask> tasks, std::size_t most) {
  const std::lock_guard lock(mutex_);
  tasks_ = std::move(tasks);
  embeddings_.resize(tasks_.size());
  most_ = most;
  for (const TextTask& task : tasks_) tokens_ += std::ssize(task.prompt);
  std::vector<TextTask> first;
  for (; submitted_ < std::min(most, tasks_.size()); ++submitted_) first.push_back(next_task());
  queue_.submit(std::move(first));
}

/// The one that is to be submitted next. Only then has it a listener, which keeps this alive.
TextTask EmbeddingResponse::next_task() {
  TextTask task = tasks_[submitted_];
  task.listener = std::make_shared<Text>(shared_from_this(), submitted_);
  return task;
}

void EmbeddingResponse::submit_more() {
  for (; submitted_ < tasks_.size() && submitted_ - heard_ < most_; ++submitted_) {
    try {
      queue_.submit({next_task()});
    } catch (const ApiError&) {
      if (submitted_ == heard_) throw;
      return;  // again once the next has been heard
    }
  }
}

void EmbeddingResponse::heard(std::size_t index, const std::vector<float>& embedding) {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  embeddings_[index] = embedding;
  if (++heard_ < tasks_.size()) {
    try {
      submit_more();
    } catch (const ApiError& error) {
      fail(error);
    }
    return;
  }
  metrics_.add("megatron_requests_total", 1, {{"path", kEmbeddingPath}, {"status", "200"}});
  reply_->send({.body = embeddings_json(model_, embeddings_, base64_, tokens_)});
}

void EmbeddingResponse::failed(const ApiError& error) {
  const std::lock_guard lock(mutex_);
  fail(error);
}

void EmbeddingResponse::fail(const ApiError& error) {
  if (failed_.exchange(true)) return;
  metrics_.add("megatron_requests_total", 1, {{"path", kEmbeddingPath}, {"status", std::to_string(error.status)}});
  reply_->send(error_response(error));
}

}  // namespace megatron::serve
