#include "megatron/corpus/output_file.h"

#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <stdexcept>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/base/files/file.h"

namespace megatron::corpus {

/// Passes bytes on as they are.
class OutputFile::Encoder {
 public:
  explicit Encoder(const std::string& path) : file_(path) {}
  virtual ~Encoder() = default;
  virtual void write(std::string_view bytes) { file_.write(bytes); }
  virtual void finish() {}
  void commit() {
    finish();
    file_.commit();
  }

 protected:
  AtomicFile file_;
};

class OutputFile::Gzip : public Encoder {
 public:
  explicit Gzip(const std::string& path) : Encoder(path), buffer_(1 << 16) {
    constexpr int kGzip = 16, kMemory = 8;
    if (::deflateInit2(&stream_, Z_DEFAULT_COMPRESSION, Z_DEFLATED, MAX_WBITS + kGzip, kMemory, Z_DEFAULT_STRATEGY) !=
        Z_OK)
      throw std::runtime_error("zlib: out of memory");
  }
  ~Gzip() override { ::deflateEnd(&stream_); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  void write(std::string_view bytes) override {
    for (std::size_t done = 0; done < bytes.size();) {
      const std::string_view part = bytes.substr(done, 1 << 20);
      run(part, Z_NO_FLUSH);
      done += part.size();
    }
  }
  void finish() override { run({}, Z_FINISH); }

 private:
  void run(std::string_view bytes, int flush) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
    stream_.avail_in = static_cast<uInt>(bytes.size());
    do {
      stream_.next_out = reinterpret_cast<Bytef*>(buffer_.data());
      stream_.avail_out = static_cast<uInt>(buffer_.size());
      if (::deflate(&stream_, flush) == Z_STREAM_ERROR) throw std::logic_error("zlib: a broken stream");
      file_.write(std::string_view(buffer_.data(), buffer_.size() - stream_.avail_out));
    } while (stream_.avail_out == 0);
  }

  z_stream stream_{};
  std::vector<char> buffer_;
};

class OutputFile::Zstd : public Encoder {
 public:
  explicit Zstd(const std::string& path) : Encoder(path), buffer_(::ZSTD_CStreamOutSize()) {
    ::ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, 3);
    ::ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_checksumFlag, 1);
  }
  void write(std::string_view bytes) override { run(bytes, ZSTD_e_continue); }
  void finish() override { run({}, ZSTD_e_end); }

 private:
  struct Free {
    void operator()(ZSTD_CCtx* context) const { ::ZSTD_freeCCtx(context); }
  };

  void run(std::string_view bytes, ZSTD_EndDirective directive) {
    ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
    for (;;) {
      ZSTD_outBuffer out{buffer_.data(), buffer_.size(), 0};
      const std::size_t left = ::ZSTD_compressStream2(context_.get(), &out, &in, directive);
      if (::ZSTD_isError(left) != 0) throw std::runtime_error(concat("zstd: ", ::ZSTD_getErrorName(left)));
      file_.write(std::string_view(buffer_.data(), out.pos));
      if (directive == ZSTD_e_end ? left == 0 : in.pos == in.size) return;
    }
  }

  std::unique_ptr<ZSTD_CCtx, Free> context_{::ZSTD_createCCtx()};
  std::vector<char> buffer_;
};

class OutputFile::Xz : public Encoder {
 public:
  explicit Xz(const std::string& path) : Encoder(path), buffer_(1 << 16) {
    if (::lzma_easy_encoder(&stream_, LZMA_PRESET_DEFAULT, LZMA_CHECK_CRC64) != LZMA_OK)
      throw std::runtime_error("xz: out of memory");
  }
  ~Xz() override { ::lzma_end(&stream_); }
  Xz(const Xz&) = delete;
  Xz& operator=(const Xz&) = delete;

  void write(std::string_view bytes) override {
    if (!bytes.empty()) run(bytes, LZMA_RUN);
  }
  void finish() override { run({}, LZMA_FINISH); }

 private:
  void run(std::string_view bytes, lzma_action action) {
    stream_.next_in = reinterpret_cast<const std::uint8_t*>(bytes.data());
    stream_.avail_in = bytes.size();
    for (lzma_ret status = LZMA_OK; action == LZMA_FINISH ? status != LZMA_STREAM_END : stream_.avail_in > 0;) {
      stream_.next_out = reinterpret_cast<std::uint8_t*>(buffer_.data());
      stream_.avail_out = buffer_.size();
      status = ::lzma_code(&stream_, action);
      if (status != LZMA_OK && status != LZMA_STREAM_END) throw std::runtime_error("xz: too little memory");
      file_.write(std::string_view(buffer_.data(), buffer_.size() - stream_.avail_out));
    }
  }

  lzma_stream stream_ = LZMA_STREAM_INIT;
  std::vector<char> buffer_;
};

namespace {

/// A name that promises another compression would be read as damaged.
void check_ending(const std::string& path) {
  for (const char* const ending : {".bz2", ".lz4", ".lzma", ".zip"})
    if (path.ends_with(ending))
      throw ConfigError(rule_got_fix("an output is compressed as .gz, .zst or .xz, or not at all.", path,
                                     path.substr(0, path.rfind('.')) + ".zst"));
}

}  // namespace

OutputFile::OutputFile(const std::string& path) {
  check_ending(path);
  make_folder(std::filesystem::path(path).parent_path());
  if (path.ends_with(".gz"))
    encoder_ = std::make_unique<Gzip>(path);
  else if (path.ends_with(".zst"))
    encoder_ = std::make_unique<Zstd>(path);
  else if (path.ends_with(".xz"))
    encoder_ = std::make_unique<Xz>(path);
  else
    encoder_ = std::make_unique<Encoder>(path);
}
OutputFile::~OutputFile() = default;

void OutputFile::write(std::string_view bytes) {
  encoder_->write(bytes);
  size_ += static_cast<std::int64_t>(bytes.size());
}

void OutputFile::commit() { encoder_->commit(); }

}  // namespace megatron::corpus
