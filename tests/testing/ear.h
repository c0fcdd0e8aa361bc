#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "megatron/serve/task.h"

// Who hears the texts that a test has a server's engine write.
namespace megatron::testing {

/// Hears a text, and may go away or have enough of it.
struct Ear : serve::TextListener {
  std::vector<std::int64_t> tokens;
  std::vector<serve::ScoredToken> prompt, scores;
  std::string end;
  std::size_t enough = 1000;
  std::int64_t cached = -1;
  bool away = false;

  void on_cached(std::int64_t tokens) override { cached = tokens; }
  void on_prompt(std::vector<serve::ScoredToken> scored) override { prompt = std::move(scored); }
  bool on_token(const serve::ScoredToken& token) override {
    EXPECT_EQ(end, "");
    tokens.push_back(token.id);
    scores.push_back(token);
    return tokens.size() < enough;
  }
  void on_end(serve::Finish finish) override { end += finish == serve::Finish::Stop ? "stop" : "length"; }
  void on_error(int status, const std::string&) override { end += std::to_string(status); }
  bool gone() const override { return away; }
};

/// Who hears `task`, which is handed to the queue with an hour's time.
inline std::shared_ptr<Ear> submitted(serve::TextTask task, serve::TaskQueue& queue) {
  auto ear = std::make_shared<Ear>();
  task.listener = ear;
  task.arrived = serve::Clock::now();
  task.deadline = task.arrived + std::chrono::hours(1);
  queue.submit({std::move(task)});
  return ear;
}

}  // namespace megatron::testing
