#include "megatron/pipeline/run.h"

#include <ATen/ops/ones_like.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "megatron/base/error.h"
#include "megatron/base/ranges.h"
#include "megatron/comm/threads/rank_threads.h"
#include "megatron/parallel/backward.h"

namespace megatron::pipeline {
namespace {

using schedule::Kind;
using schedule::Op;

/// What is alive of one microbatch on one stage.
struct Flight {
  std::optional<parallel::GraphLeaf> input;  ///< where the graph begins, on stages that have one before them
  parallel::GraphRoot output;                ///< where it ends
  at::Tensor x, y;                           ///< input until forward, output until it is on its way
  at::Tensor dy, dx;                         ///< the same of gradients
  std::vector<parallel::GradientQueue::Work> weight_gradients;  ///< put off
  Message recv_x, send_y, recv_dy, send_dx;
};

/// While it lives, weight gradients are put off.
class Deferral {
 public:
  explicit Deferral(parallel::GradientQueue& queue) : queue_(queue) { queue_.defer(true); }
  ~Deferral() { queue_.defer(false); }
  Deferral(const Deferral&) = delete;
  Deferral& operator=(const Deferral&) = delete;

 private:
  parallel::GradientQueue& queue_;
};

class Interpreter {
 public:
  Interpreter(const schedule::Program& program, int rank, const std::vector<Stage*>& stages, Link& link,
              const Hooks& hooks)
      : program_(program),
        placement_(program.placement),
        rank_(rank),
        stages_(stages),
        link_(link),
        hooks_(hooks),
        flights_(stages.size() * static_cast<std::size_t>(program.num_microbatches)) {
    if (rank < 0 || rank >= placement_.num_ranks() || stages.size() != placement_.stages_of(rank).size())
      throw std::logic_error(concat("rank ", rank, " of a program brings ", stages.size(), " stages"));
    if (placement_.rank_of(last_stage()) == rank)
      result_.loss_sums.resize(static_cast<std::size_t>(program.num_microbatches));
  }

  Result run() {
    const c10::AutoGradMode mode(!program_.forward_only);
    const Op* current = nullptr;
    const auto shared_marks = std::make_shared<Marks>(hooks_.device);
    Marks& marks = *shared_marks;
    const std::vector<Op>& operations = program_.ranks[static_cast<std::size_t>(rank_)];
    try {
      if (link_.shapes_vary()) exchange_shapes();
      for (const Op& op : operations) {
        current = &op;
        if (hooks_.begins) hooks_.begins(op);
        marks.add();
        {
          const NamedRange range([&] { return to_string(op); });
          execute(op);
        }
        marks.add();
        if (hooks_.device.is_cpu()) measure({&op, 1}, marks.take());
      }
      if (!hooks_.device.is_cpu() && hooks_.observe) measure(operations, marks.take());
    } catch (const comm::PeerError& error) {
      const std::string message = current ? concat(describe(*current), ": ", error.what()) : error.what();
      link_.abort(message);
      throw comm::PeerError(message);
    } catch (...) {
      link_.abort(comm::message_of(std::current_exception()));
      throw;
    }
    if (!hooks_.device.is_cpu() && !hooks_.observe)
      result_.measure = [shared_marks, operations](Result& result) {
        add_times(result, operations, shared_marks->take(), nullptr);
      };
    return std::move(result_);
  }

 private:
  using Observe = decltype(Hooks::observe);

  void measure(std::span<const Op> operations, const std::vector<Clock::time_point>& times) {
    add_times(result_, operations, times, hooks_.observe);
  }
  /// `times`: when each operation began and ended.
  static void add_times(Result& result, std::span<const Op> operations, const std::vector<Clock::time_point>& times,
                        const Observe& observe) {
    auto time = times.begin();
    for (const Op& op : operations) {
      const auto start = *time++, end = *time++;
      const double seconds = std::chrono::duration<double>(end - start).count();
      if (op.kind == Kind::Forward) result.forward_s += seconds;
      if (is_backward(op.kind)) result.backward_s += seconds;
      if (observe) observe(op, start, end);
    }
  }

  static bool is_backward(Kind kind) {
    return kind == Kind::Backward || kind == Kind::BackwardInput || kind == Kind::BackwardWeight;
  }
  int last_stage() const { return placement_.num_stages() - 1; }
  bool is_here(int stage) const { return placement_.rank_of(stage) == rank_; }
  Flight& flight(int stage, int microbatch) {
    return flights_[static_cast<std::size_t>(placement_.chunk_of(stage)) *
                        static_cast<std::size_t>(program_.num_microbatches) +
                    static_cast<std::size_t>(microbatch)];
  }

  void exchange_shapes() {
    std::vector<std::vector<std::int64_t>> shapes;
    if (is_here(0))
      for (int m = 0; m < program_.num_microbatches; ++m) shapes.push_back(stages_.front()->boundary_shape(m));
    link_.exchange_shapes(shapes, program_.num_microbatches, placement_.rank_of(0));
  }

  // The pipeline rank at the other end of a message; -1 for other operations.
  int peer_of(const Op& op) const {
    switch (op.kind) {
      case Kind::RecvActivation:
      case Kind::WaitRecvActivation:
      case Kind::SendGradient:
      case Kind::WaitSendGradient:
        return placement_.rank_of(op.stage - 1);
      case Kind::SendActivation:
      case Kind::WaitSendActivation:
      case Kind::RecvGradient:
      case Kind::WaitRecvGradient:
        return placement_.rank_of(op.stage + 1);
      case Kind::Forward:
      case Kind::Backward:
      case Kind::BackwardInput:
      case Kind::BackwardWeight:
      case Kind::ReduceGradients:
        return -1;
    }
    return -1;
  }

  std::string describe(const Op& op) const {
    const int peer = peer_of(op);
    return concat("pipeline operation ", to_string(op), " (stage ", op.stage, ", microbatch ", op.microbatch,
                  peer < 0 ? std::string() : concat(", with pipeline rank ", peer), ")");
  }

  void execute(const Op& op) {
    Flight& f = flight(op.stage, op.microbatch);
    switch (op.kind) {
      case Kind::Forward:
        return forward(op, f);
      case Kind::Backward:
        return backward(op, f);
      case Kind::BackwardInput: {
        if (hooks_.weight_gradients == nullptr) throw std::logic_error("the program splits backward; nobody defers");
        const Deferral deferral(*hooks_.weight_gradients);
        backward(op, f);
        f.weight_gradients = hooks_.weight_gradients->take();
        return;
      }
      case Kind::BackwardWeight:
        return parallel::run_pieces(std::exchange(f.weight_gradients, {}));
      case Kind::SendActivation:
        f.send_y = link_.post_send(std::exchange(f.y, {}), peer_of(op));
        return;
      case Kind::RecvActivation:
        f.recv_x = link_.post_recv(op.microbatch, peer_of(op), op.stage - 1);
        return;
      case Kind::SendGradient:
        f.send_dx = link_.post_send(std::exchange(f.dx, {}), peer_of(op));
        return;
      case Kind::RecvGradient:
        f.recv_dy = link_.post_recv(op.microbatch, peer_of(op), op.stage);
        return;
      case Kind::WaitSendActivation:
        return Link::wait_sent(f.send_y);
      case Kind::WaitRecvActivation:
        f.x = link_.wait_received(f.recv_x, op.microbatch, op.stage - 1);
        return;
      case Kind::WaitSendGradient:
        return Link::wait_sent(f.send_dx);
      case Kind::WaitRecvGradient:
        f.dy = link_.wait_received(f.recv_dy, op.microbatch, op.stage);
        return;
      case Kind::ReduceGradients:
        if (hooks_.reduce_gradients) hooks_.reduce_gradients(op.stage);
        return;
    }
  }

  void forward(const Op& op, Flight& f) {
    at::Tensor x = std::exchange(f.x, {});
    if (op.stage > 0 && !x.defined()) throw std::logic_error(describe(op) + " comes before its input");
    if (op.stage > 0 && !program_.forward_only) x = f.input.emplace(x).take();
    Output output = stages_[static_cast<std::size_t>(placement_.chunk_of(op.stage))]->forward(op.microbatch,
                                                                                              std::move(x), op.partial);
    if (!program_.forward_only) f.output = parallel::GraphRoot(output.tensor);
    at::Tensor data = output.tensor.detach();
    if (op.stage == last_stage()) {
      result_.loss_sums[static_cast<std::size_t>(op.microbatch)] = std::move(data);
      result_.count += output.count;
    } else if (is_here(op.stage + 1)) {
      flight(op.stage + 1, op.microbatch).x = std::move(data);
    } else {
      f.y = std::move(data);
    }
  }

  void backward(const Op& op, Flight& f) {
    const bool last = op.stage == last_stage();
    const at::Tensor dy =
        last ? at::ones_like(result_.loss_sums[static_cast<std::size_t>(op.microbatch)]) : std::exchange(f.dy, {});
    if (!dy.defined()) throw std::logic_error(describe(op) + " comes before its gradient");
    f.output.backward(dy);
    if (op.stage == 0) return;
    at::Tensor dx = f.input->take_gradient();
    f.input.reset();
    if (!dx.defined()) throw std::logic_error(describe(op) + " gave its input no gradient");
    if (is_here(op.stage - 1))
      flight(op.stage - 1, op.microbatch).dy = std::move(dx);
    else
      f.dx = std::move(dx);
  }

  const schedule::Program& program_;
  const schedule::Placement& placement_;
  const int rank_;
  const std::vector<Stage*>& stages_;
  Link& link_;
  const Hooks& hooks_;
  std::vector<Flight> flights_;  ///< [chunk][microbatch]
  Result result_;
};

}  // namespace

Result run(const schedule::Program& program, int rank, const std::vector<Stage*>& stages, Link& link,
           const Hooks& hooks) {
  return Interpreter(program, rank, stages, link, hooks).run();
}

}  // namespace megatron::pipeline
