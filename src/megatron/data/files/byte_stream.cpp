#include "megatron/data/files/byte_stream.h"

#include <fcntl.h>
#include <lzma.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string_view>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"
#include "megatron/data/columns/rows.h"

namespace megatron::data {
namespace {

/// What is wrong with an input that cannot be opened, of the system's present error.
std::string unreadable(const std::string& name) {
  return rule_got_fix("an input must be a readable file.", concat(name, ": ", std::strerror(errno)),
                      "name a file that is there and may be read");
}

std::string is_folder(const std::string& path) {
  return rule_got_fix("an input must be a file.", path + " is a folder", concat("name its files: ", path, "/*"));
}

}  // namespace

/// Compressed input: a window over a file descriptor or over memory.
class ByteStream::Source {
 public:
  explicit Source(const std::string& path)
      : name_(path == "-" ? "standard input" : path), buffer_(1 << 18), is_standard_input_(path == "-") {
    fd_ = path == "-" ? ::dup(STDIN_FILENO) : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd_ < 0) throw ConfigError(unreadable(name_));
    ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  Source(std::span<const std::byte> memory, const std::string& name) : name_(name), window_(memory) {}
  ~Source() {
    if (fd_ >= 0) ::close(fd_);
  }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  /// What is there and not taken; reads on when there is nothing, or less than `at_least`. Shorter only at the end.
  std::span<const std::byte> window(std::size_t at_least = 1) {
    if (window_.size() >= at_least || fd_ < 0) return window_;
    if (!window_.empty()) std::memmove(buffer_.data(), window_.data(), window_.size());
    std::size_t have = window_.size();
    while (have < at_least) {
      const ssize_t n = ::read(fd_, buffer_.data() + have, buffer_.size() - have);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EISDIR) throw ConfigError(is_folder(name_));
      if (n < 0) throw std::runtime_error(concat("cannot read ", name_, ": ", std::strerror(errno)));
      if (n == 0) break;
      have += static_cast<std::size_t>(n);
    }
    window_ = std::span<const std::byte>(buffer_).first(have);
    return window_;
  }
  void take(std::size_t bytes) {
    window_ = window_.subspan(bytes);
    position_ += static_cast<std::int64_t>(bytes);
  }
  std::int64_t position() const { return position_; }
  void set_position(std::int64_t position) { position_ = position; }
  const std::string& name() const { return name_; }
  /// All of the memory, before any of it was taken; nothing of a file.
  std::span<const std::byte> memory() const { return fd_ < 0 ? window_ : std::span<const std::byte>(); }
  bool is_file() const {
    struct stat info {};
    return fd_ >= 0 && ::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode);
  }
  bool is_standard_input() const { return is_standard_input_; }

  [[noreturn]] void damaged(const std::string& rule, const std::string& got) const {
    refused(rule, got, "copy the file again: it is cut off or damaged");
  }
  /// For what another program unpacks: `command` with the file's name.
  [[noreturn]] void packed(const std::string& rule, const std::string& got, const std::string& command) const {
    refused(rule, got, concat("unpack it first: ", command, " ", is_standard_input_ ? "FILE" : name_));
  }

 private:
  [[noreturn]] void refused(const std::string& rule, const std::string& got, const std::string& fix) const {
    throw ConfigError(rule_got_fix(concat(name_, ", byte ", position_, ": ", rule), got, fix));
  }

  std::string name_;
  int fd_ = -1;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> window_;
  std::int64_t position_ = 0;
  bool is_standard_input_ = false;
};

class ByteStream::Decoder {
 public:
  virtual ~Decoder() = default;
  /// As ByteStream::read, but may give less before the end; 0 only at the end.
  virtual std::size_t read(Source& source, std::span<char> out) = 0;
};

class ByteStream::Plain : public Decoder {
 public:
  std::size_t read(Source& source, std::span<char> out) override {
    const auto window = source.window();
    const std::size_t n = std::min(window.size(), out.size());
    std::memcpy(out.data(), window.data(), n);
    source.take(n);
    return n;
  }
};

class ByteStream::Gzip : public Decoder {
 public:
  Gzip() {
    constexpr int kGzipOnly = 16;
    if (::inflateInit2(&stream_, MAX_WBITS + kGzipOnly) != Z_OK) throw std::runtime_error("zlib: out of memory");
  }
  ~Gzip() override { ::inflateEnd(&stream_); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  std::size_t read(Source& source, std::span<char> out) override {
    for (;;) {
      const auto window = source.window();
      if (window.empty()) {
        if (in_member_) source.damaged("a gzip member must be complete.", "the end of the file");
        return 0;
      }
      if (!in_member_ && window.front() == std::byte{0}) {
        skip_padding(source);
        return 0;
      }
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(window.data()));
      stream_.avail_in = static_cast<uInt>(std::min<std::size_t>(window.size(), 1 << 20));
      stream_.next_out = reinterpret_cast<Bytef*>(out.data());
      stream_.avail_out = static_cast<uInt>(std::min<std::size_t>(out.size(), 1 << 30));
      const uInt offered = stream_.avail_in, room = stream_.avail_out;
      in_member_ = true;
      const int status = ::inflate(&stream_, Z_NO_FLUSH);
      source.take(offered - stream_.avail_in);
      if (status == Z_STREAM_END) {
        in_member_ = false;
        ::inflateReset(&stream_);
      } else if (status != Z_OK) {
        source.damaged("gzip data must be whole.", stream_.msg != nullptr ? stream_.msg : "a broken stream");
      }
      if (stream_.avail_out < room) return room - stream_.avail_out;
    }
  }

 private:
  /// Zeros after the last member, as tapes and blocks of a fixed size leave them, are no data.
  static void skip_padding(Source& source) {
    while (!source.window().empty()) {
      const auto window = source.window();
      const auto zeros = std::find_if(window.begin(), window.end(), [](std::byte b) { return b != std::byte{0}; });
      source.take(static_cast<std::size_t>(zeros - window.begin()));
      if (zeros != window.end()) source.damaged("after gzip data may come zeros alone.", "other bytes after zeros");
    }
  }

  z_stream stream_{};
  bool in_member_ = false;
};

class ByteStream::Zstd : public Decoder {
 public:
  std::size_t read(Source& source, std::span<char> out) override {
    for (;;) {
      const auto window = source.window();
      ZSTD_inBuffer in{window.data(), window.size(), 0};
      ZSTD_outBuffer to{out.data(), out.size(), 0};
      if (window.empty() && !in_frame_) return 0;
      const std::size_t status = ::ZSTD_decompressStream(stream_.get(), &to, &in);
      source.take(in.pos);
      if (::ZSTD_isError(status) != 0 && ::ZSTD_getErrorCode(status) == ZSTD_error_frameParameter_windowTooLarge)
        source.packed("zstd data must have a window of at most 128 MiB.", "a larger one", "zstd -dk --long=31");
      if (::ZSTD_isError(status) != 0) source.damaged("zstd data must be whole.", ::ZSTD_getErrorName(status));
      in_frame_ = status != 0;
      if (to.pos > 0) return to.pos;
      if (window.empty()) source.damaged("a zstd frame must be complete.", "the end of the file");
    }
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ::ZSTD_freeDStream(stream); }
  };
  std::unique_ptr<ZSTD_DStream, Free> stream_{::ZSTD_createDStream()};
  bool in_frame_ = false;
};

class ByteStream::Xz : public Decoder {
 public:
  Xz() {
    constexpr std::uint64_t kMemory = 128 << 20;  // xz -9 needs 65 MiB
    if (::lzma_stream_decoder(&stream_, kMemory, LZMA_CONCATENATED) != LZMA_OK)
      throw std::runtime_error("xz: out of memory");
  }
  ~Xz() override { ::lzma_end(&stream_); }
  Xz(const Xz&) = delete;
  Xz& operator=(const Xz&) = delete;

  std::size_t read(Source& source, std::span<char> out) override {
    while (!ended_) {
      const auto window = source.window();
      stream_.next_in = reinterpret_cast<const std::uint8_t*>(window.data());
      stream_.avail_in = window.size();
      stream_.next_out = reinterpret_cast<std::uint8_t*>(out.data());
      stream_.avail_out = out.size();
      const lzma_ret status = ::lzma_code(&stream_, window.empty() ? LZMA_FINISH : LZMA_RUN);
      source.take(window.size() - stream_.avail_in);
      ended_ = status == LZMA_STREAM_END;
      if (status == LZMA_MEMLIMIT_ERROR)
        source.packed("xz data must need at most 128 MiB to be unpacked.", "a larger dictionary", "xz -dk");
      if (!ended_ && status != LZMA_OK) source.damaged("xz data must be whole.", why(status));
      if (stream_.avail_out < out.size()) return out.size() - stream_.avail_out;
    }
    return 0;
  }

 private:
  static const char* why(lzma_ret status) {
    switch (status) {
      case LZMA_BUF_ERROR:
        return "the end of the file";
      case LZMA_OPTIONS_ERROR:
        return "a filter that is not known";
      case LZMA_MEM_ERROR:
        return "too little memory";
      default:
        return "a broken stream";
    }
  }

  lzma_stream stream_ = LZMA_STREAM_INIT;
  bool ended_ = false;
};

/// The rows of a parquet or Arrow file, as lines of JSON.
class ByteStream::Rows : public Decoder {
 public:
  using Open = std::unique_ptr<RowSource> (*)(ColumnFile);
  Rows(const Source& source, Open open) {
    if (!source.memory().empty()) {
      rows_ = open({source.name(), source.memory()});
      return;
    }
    if (source.is_standard_input() || !source.is_file())
      throw ConfigError(rule_got_fix("parquet and Arrow must be files: they are not read from front to back.",
                                     source.name() + ", which is none", "--input FILE"));
    file_ = MappedFile(source.name());
    rows_ = open({source.name(), file_.bytes()});
  }

  std::size_t read(Source& source, std::span<char> out) override {
    if (given_ == lines_.size()) {
      lines_.clear();
      given_ = 0;
      if (!rows_->next(lines_)) return 0;
      source.set_position(rows_->position());
    }
    const std::size_t n = std::min(lines_.size() - given_, out.size());
    std::memcpy(out.data(), lines_.data() + given_, n);
    given_ += n;
    return n;
  }

 private:
  MappedFile file_;
  std::unique_ptr<RowSource> rows_;
  std::string lines_;
  std::size_t given_ = 0;
};

ByteStream::ByteStream(const std::string& path) : source_(std::make_unique<Source>(path)) { choose_decoder(); }
ByteStream::ByteStream(std::span<const std::byte> memory, const std::string& name)
    : source_(std::make_unique<Source>(memory, name)) {
  choose_decoder();
}
ByteStream::~ByteStream() = default;
ByteStream::ByteStream(ByteStream&&) noexcept = default;
ByteStream& ByteStream::operator=(ByteStream&&) noexcept = default;

void ByteStream::choose_decoder() {
  struct Kind {
    const char *name, *ending;
    std::vector<std::uint8_t> begins;
    std::unique_ptr<Decoder> (*make)(const Source& source);
    bool is_rows = false;
    const char* unpack = nullptr;  // the command, of what is not read
    std::size_t masked = 0;        // a byte of which only some bits count
    unsigned mask = 0xFF;

    bool may_be(std::span<const std::byte> bytes) const {
      for (std::size_t i = 0; i < std::min(bytes.size(), begins.size()); ++i)
        if (((std::to_integer<unsigned>(bytes[i]) ^ begins[i]) & (i == masked ? mask : 0xFFu)) != 0) return false;
      return true;
    }
  };
  using Made = std::unique_ptr<Decoder>;
  const auto zstd = [](const Source&) { return Made(new Zstd); };
  const auto arrow = [](const Source& source) { return Made(new Rows(source, open_arrow)); };
  const auto parquet = [](const Source& source) { return Made(new Rows(source, open_parquet)); };
  const auto none = [](const Source&) { return Made(); };
  const Kind kinds[] = {
      {"gzip", ".gz", {0x1F, 0x8B}, [](const Source&) { return Made(new Gzip); }},
      {"zstd", ".zst", {0x50, 0x2A, 0x4D, 0x18}, zstd, false, nullptr, 0, 0xF0},  // a frame to be skipped
      {"zstd", ".zst", {0x28, 0xB5, 0x2F, 0xFD}, zstd},
      {"xz", ".xz", {0xFD, '7', 'z', 'X', 'Z', 0}, [](const Source&) { return Made(new Xz); }},
      {"parquet", ".parquet", {'P', 'A', 'R', '1'}, parquet, true},
      {"Arrow", ".arrow", {'A', 'R', 'R', 'O', 'W', '1'}, arrow, true},
      {"Arrow", ".arrow", {0xFF, 0xFF, 0xFF, 0xFF}, arrow, true},  // a stream of it
      {"Arrow", ".feather", {'A', 'R', 'R', 'O', 'W', '1'}, arrow, true},
      // "BZh", a digit, and the first block's mark
      {"bzip2", ".bz2", {'B', 'Z', 'h', '0', '1', 'A', 'Y', '&', 'S', 'Y'}, none, false, "bzip2 -dk", 3, 0xF0},
      {"lz4", ".lz4", {0x04, 0x22, 0x4D, 0x18}, none, false, "lz4 -dk"},
      {"lzma", ".lzma", {0x5D, 0, 0}, none, false, "xz -dk"},
      {"zip", ".zip", {'P', 'K', 3, 4}, none, false, "unzip"},
  };
  // Of a terminal or a pipe no more is waited for than tells the kinds apart.
  auto begin = source_->window();
  const auto may_be = [&](const Kind& kind) { return kind.may_be(begin); };
  for (std::size_t size = 2; size <= 10 && std::any_of(std::begin(kinds), std::end(kinds), may_be); ++size)
    begin = source_->window(size);
  const auto is_it = [&](const Kind& kind) { return begin.size() >= kind.begins.size() && kind.may_be(begin); };
  const Kind* const found = std::find_if(std::begin(kinds), std::end(kinds), is_it);
  for (const Kind& kind : kinds)
    if (std::string_view(source_->name()).ends_with(kind.ending) &&
        (found == std::end(kinds) || std::string_view(found->name) != kind.name))
      source_->damaged(concat("a ", kind.ending, " file must begin as ", kind.name, " does."), "other bytes");
  if (found != std::end(kinds) && found->unpack != nullptr)
    source_->packed("a compressed input must be gzip, zstd or xz.", found->name, found->unpack);
  is_rows_ = found != std::end(kinds) && found->is_rows;
  decoder_ = found != std::end(kinds) ? found->make(*source_) : std::make_unique<Plain>();
}

std::size_t ByteStream::read(std::span<char> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t n = decoder_->read(*source_, out.subspan(done));
    if (n == 0) break;
    done += n;
  }
  return done;
}

std::size_t ByteStream::read_some(std::span<char> out) { return out.empty() ? 0 : decoder_->read(*source_, out); }

void ByteStream::skip(std::int64_t bytes) {
  std::vector<char> ignored(std::min<std::size_t>(static_cast<std::size_t>(bytes), 1 << 20));
  while (bytes > 0) {
    const auto wanted = std::min<std::size_t>(static_cast<std::size_t>(bytes), ignored.size());
    if (read(std::span(ignored).first(wanted)) < wanted)
      source_->damaged("the file must continue from where it was left.", "a shorter one");
    bytes -= static_cast<std::int64_t>(wanted);
  }
}

std::int64_t ByteStream::position() const { return source_->position(); }

void check_readable(const std::vector<std::string>& inputs) {
  std::string errors;
  for (const std::string& path : inputs) {
    if (path == "-") continue;
    struct stat info {};
    std::string error;
    if (::stat(path.c_str(), &info) != 0 || ::access(path.c_str(), R_OK) != 0)
      error = unreadable(path);
    else if (S_ISDIR(info.st_mode))
      error = is_folder(path);
    if (!error.empty()) errors += (errors.empty() ? "" : "\n") + error;
  }
  if (!errors.empty()) throw ConfigError(errors);
}

}  // namespace megatron::data
