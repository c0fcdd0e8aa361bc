#include "megatron/kernels/token/token.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "megatron/kernels/cuda/launch.h"
#include "megatron/kernels/phases/operators/token.h"

namespace megatron::kernels {
namespace {

void check_graph(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("a graph of CUDA, ") + what + ": " + cudaGetErrorString(error));
}

/// Launches of one stream as a graph. They hold no memory of ATen's but what their tensors, which the caller keeps,
/// have.
class CudaGraph final : public Replay {
 public:
  explicit CudaGraph(const std::function<void()>& launches) {
    // The stream that ATen computes on may be the default one, which cannot be captured.
    const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
    cudaGraph_t graph = nullptr;
    {
      const c10::cuda::CUDAStreamGuard guard(stream);
      check_graph(cudaStreamBeginCapture(stream.stream(), cudaStreamCaptureModeThreadLocal), "begin of the capture");
      try {
        launches();
      } catch (...) {
        cudaStreamEndCapture(stream.stream(), &graph);
        if (graph != nullptr) cudaGraphDestroy(graph);
        throw;
      }
      check_graph(cudaStreamEndCapture(stream.stream(), &graph), "end of the capture");
    }
    const cudaError_t error = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check_graph(error, "instantiation");
  }
  ~CudaGraph() override {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);  // does not wait: what runs is let end
  }
  void run() override {
    check_graph(cudaGraphLaunch(graph_, static_cast<cudaStream_t>(cuda::current_stream())), "launch");
  }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

std::unique_ptr<Replay> capture(std::function<void()> launches) { return std::make_unique<CudaGraph>(launches); }

using Token = phases::TokenOperators<cuda::DeviceDriver>;
constexpr TokenKernels kCudaTokenKernels{.embed = Token::embed,
                                         .multiply = Token::multiply,
                                         .normalize = Token::normalize,
                                         .attend = Token::attend,
                                         .choose = Token::choose,
                                         .draw = Token::draw,
                                         .shortlist = Token::shortlist,
                                         .capture = capture};

}  // namespace

/// Looked up by parallel::load_cuda(). `size`: set to that of the table.
extern "C" __attribute__((visibility("default"))) const TokenKernels* megatron_cuda_token_kernels(std::size_t* size) {
  *size = sizeof(TokenKernels);
  return &kCudaTokenKernels;
}

}  // namespace megatron::kernels
