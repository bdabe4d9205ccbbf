/// Whether io_uring would write faster than a pool of threads: copies a file from the page cache past it (O_DIRECT), in
/// turn by threads that each read and write, and by threads that read and queue their writes on a ring.
/// usage: ring_bench SOURCE TARGET JOBS ROUNDS

#include <fcntl.h>
#include <liburing.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kBlockBytes = std::size_t{8} << 20;
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

void require(bool good, const char* what) {
  if (good) return;
  std::perror(what);
  std::exit(1);
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
using Block = std::unique_ptr<char, Free>;

Block make_block() {
  Block block(static_cast<char*>(std::aligned_alloc(kHugePageBytes, kBlockBytes)));
  require(block != nullptr, "memory");
  (void)madvise(block.get(), kBlockBytes, MADV_HUGEPAGE);
  return block;
}

/// Hands out the blocks of a source and reads them.
class Copy {
 public:
  Copy(const char* source, const char* target) {
    from_ = open(source, O_RDONLY);
    require(from_ >= 0, source);
    bytes_ = lseek(from_, 0, SEEK_END) / 4096 * 4096;
    to_ = open(target, O_RDWR | O_CREAT | O_TRUNC | O_DIRECT, 0666);
    require(to_ >= 0, target);
    require(fallocate(to_, 0, 0, bytes_) == 0, "fallocate");
  }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;
  ~Copy() {
    close(from_);
    close(to_);
  }

  int to() const { return to_; }
  off_t bytes() const { return bytes_; }
  /// The next block's offset, or the end.
  off_t take() { return next_.fetch_add(kBlockBytes); }
  std::size_t read(char* out, off_t offset) const {
    const std::size_t bytes = std::min<std::size_t>(kBlockBytes, static_cast<std::size_t>(bytes_ - offset));
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t got = pread(from_, out + done, bytes - done, offset + static_cast<off_t>(done));
      require(got > 0, "read");
      done += static_cast<std::size_t>(got);
    }
    return bytes;
  }

 private:
  int from_ = -1;
  int to_ = -1;
  off_t bytes_ = 0;
  std::atomic<off_t> next_{0};
};

void by_thread(Copy& copy) {
  const Block block = make_block();
  for (off_t at = copy.take(); at < copy.bytes(); at = copy.take()) {
    const std::size_t bytes = copy.read(block.get(), at);
    require(pwrite(copy.to(), block.get(), bytes, at) == static_cast<ssize_t>(bytes), "write");
  }
}

void by_ring(Copy& copy, int depth) {
  io_uring ring;
  require(io_uring_queue_init(static_cast<unsigned>(depth), &ring, 0) == 0, "ring");
  std::vector<Block> blocks;
  std::vector<iovec> places;
  std::vector<int> free;
  for (int i = 0; i < depth; ++i) {
    blocks.push_back(make_block());
    places.push_back({blocks.back().get(), kBlockBytes});
    free.push_back(i);
  }
  require(io_uring_register_buffers(&ring, places.data(), static_cast<unsigned>(depth)) == 0, "register");
  const auto reap = [&] {
    io_uring_cqe* done = nullptr;
    require(io_uring_wait_cqe(&ring, &done) == 0 && done->res > 0, "write by the ring");
    free.push_back(static_cast<int>(done->user_data));
    io_uring_cqe_seen(&ring, done);
  };
  for (off_t at = copy.take(); at < copy.bytes(); at = copy.take()) {
    if (free.empty()) reap();
    const int number = free.back();
    free.pop_back();
    char* const block = blocks[static_cast<std::size_t>(number)].get();
    const std::size_t bytes = copy.read(block, at);
    io_uring_sqe* const entry = io_uring_get_sqe(&ring);
    io_uring_prep_write_fixed(entry, copy.to(), block, static_cast<unsigned>(bytes), static_cast<__u64>(at), number);
    entry->user_data = static_cast<__u64>(number);
    require(io_uring_submit(&ring) == 1, "submit");
  }
  while (free.size() < blocks.size()) reap();
  io_uring_queue_exit(&ring);
}

template <typename Work>
double seconds_of(const char* source, const char* target, int threads, const Work& work) {
  Copy copy(source, target);
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> pool;
  for (int i = 0; i < threads; ++i) pool.emplace_back([&] { work(copy); });
  for (std::thread& thread : pool) thread.join();
  require(fsync(copy.to()) == 0, "flush");
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s SOURCE TARGET JOBS ROUNDS\n", argv[0]);
    return 2;
  }
  const int jobs = std::atoi(argv[3]), rounds = std::atoi(argv[4]);
  // As the CPU backend has them: half as many threads again, and two at the least, wait for the disk.
  const int threads = jobs + std::max(2, jobs / 2);
  std::vector<double> pool, large_pool, shallow, deep;
  for (int i = 0; i < rounds; ++i) {
    pool.push_back(seconds_of(argv[1], argv[2], threads, by_thread));
    large_pool.push_back(seconds_of(argv[1], argv[2], 4 * jobs, by_thread));
    shallow.push_back(seconds_of(argv[1], argv[2], jobs, [](Copy& copy) { by_ring(copy, 2); }));
    deep.push_back(seconds_of(argv[1], argv[2], jobs, [](Copy& copy) { by_ring(copy, 8); }));
  }
  std::printf(
      "medians of %d: %d threads %.3f s, %d threads %.3f s; %d threads with a ring of 2 each %.3f s, of 8 %.3f s\n",
      rounds, threads, median(pool), 4 * jobs, median(large_pool), jobs, median(shallow), median(deep));
}
