#include <fmt/format.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <thread>

#include "remote/passing_hash.hpp"
#include "remote/read_cache.hpp"
#include "remote/remote_store.hpp"
#include "remote/stoppable_wait.hpp"
#include "remote/url.hpp"
#include "support/convert.hpp"
#include "support/slug_of.hpp"

namespace glu_ckpt {
namespace {

using support::expect_error;

std::string shown(std::string_view text) {
  const auto url = parse_url(text);
  return url ? url->shown() + url->query : "none";
}

TEST(Url, IsTakenApart) {
  EXPECT_EQ(shown("https://Host/a/b?c=d#e"), "https://host/a/b?c=d");
  EXPECT_EQ(shown("http://host:80"), "http://host/");
  EXPECT_EQ(shown("http://[::1]:8080/x"), "http://[::1]:8080/x");
  EXPECT_EQ(parse_url("http://u:p%40@host:1/")->user, "u:p@");
  for (const char* const text :
       {"", "host/a", "ftp://host/", "http://", "http:///a", "http://host:0/", "http://host:65536/", "http://host:x/",
        "http://ho st/", "http://host/a\r\nX: y", "http://[::1/", "http://a%zz@h/"})
    EXPECT_EQ(shown(text), "none") << text;
}

TEST(Url, ARedirectionLeadsOn) {
  const Url from = *parse_url("https://host:444/a/b/c?q=1");
  const auto to = [&](std::string_view location) {
    const auto url = follow_location(from, location);
    return url ? url->shown() + url->query : "none";
  };
  EXPECT_EQ(to("/x?y=z"), "https://host:444/x?y=z");
  EXPECT_EQ(to("x"), "https://host:444/a/b/x");
  EXPECT_EQ(to("../x"), "https://host:444/a/x");
  EXPECT_EQ(to("../../../x"), "https://host:444/x");
  EXPECT_EQ(to("//other/x"), "https://other/x");
  EXPECT_EQ(to("http://other/x"), "http://other/x");
  EXPECT_EQ(to("file:///etc/passwd"), "none");
  EXPECT_EQ(to(""), "none");
}

TEST(Url, EncodingComesBack) {
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    std::string text;
    for (auto left = random() % 20; left > 0; --left) text += static_cast<char>(random());
    EXPECT_EQ(percent_decode(percent_encode(text)), text);
    // Any text is an address or none, and leads somewhere or nowhere.
    (void)parse_url(text);
    (void)parse_url("http://" + text);
    (void)follow_location(*parse_url("http://host/a/b"), text);
  }
  for (const char* const text : {"%", "%1", "%zz", "%-1", "%+1"}) EXPECT_FALSE(percent_decode(text)) << text;
}

TEST(RemoteTree, TakesNoNameThatLeadsElsewhere) {
  RemoteTree tree("hf://org/name");
  (void)tree.add("a/b/c.json");
  EXPECT_TRUE(tree.find("a/b")->is_directory);
  EXPECT_EQ(tree.names_in("a"), std::vector<std::string>{"b"});
  EXPECT_EQ(tree.names_in(""), std::vector<std::string>{"a"});
  using namespace std::string_literals;
  for (const std::string& name : {""s, "/a"s, "a/"s, "../a"s, "a/../b"s, "."s, "a//b"s, "a\\b"s, "a\nb"s, "a\0b"s})
    expect_error(ErrorCode::NotSupported, [&] { (void)tree.add(name); });
}

/// The parts of a file, read in an order that is a little mixed, some of them twice.
TEST(PassingHash, IsThatOfTheWholeFile) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    std::string bytes(1 + random() % 5000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    std::vector<std::pair<i64, i64>> parts;
    for (i64 at = 0; at < std::ssize(bytes);) {
      const i64 count = std::min<i64>(1 + static_cast<i64>(random() % 700), std::ssize(bytes) - at);
      parts.emplace_back(std::max<i64>(0, at - static_cast<i64>(random() % 20)), at + count);
      at += count;
    }
    std::ranges::shuffle(parts, random);
    PassingHash hash;
    std::string sum;
    for (const auto& [begin, end] : parts) {
      const iovec piece{bytes.data() + begin, static_cast<std::size_t>(end - begin)};
      const std::string now = hash.take({&piece, 1}, begin, std::ssize(bytes));
      EXPECT_TRUE(now.empty() || sum.empty());
      if (!now.empty()) sum = now;
    }
    std::array<unsigned char, SHA256_DIGEST_LENGTH> expected{};
    SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), expected.data());
    std::string text;
    for (const unsigned char byte : expected) text += fmt::format("{:02x}", byte);
    EXPECT_EQ(sum, text);
  }
}

/// A file that is not read in order has no sum, and takes no memory for it.
TEST(PassingHash, GivesUp) {
  PassingHash hash;
  std::string bytes(std::size_t{17} << 20, 'x');
  const iovec late{bytes.data(), bytes.size()}, first{bytes.data(), 1};
  EXPECT_EQ(hash.take({&late, 1}, 1, std::ssize(bytes) + 1), "");
  EXPECT_EQ(hash.take({&first, 1}, 0, std::ssize(bytes) + 1), "");
}

/// All files together keep 32 MiB of early bytes; one that is read in order needs none.
TEST(PassingHash, KeepsLittleOfAllFiles) {
  const std::string part(std::size_t{12} << 20, 'x');
  const iovec piece{const_cast<char*>(part.data()), part.size()}, byte{const_cast<char*>(part.data()), 1};
  const auto sum_of = [&](PassingHash& hash) { return hash.take({&byte, 1}, 0, std::ssize(part) + 1); };
  PassingHash one, two, over, in_order;
  EXPECT_EQ(in_order.take({&byte, 1}, 0, std::ssize(part) + 1), "");
  for (PassingHash* const hash : {&one, &two, &over}) EXPECT_EQ(hash->take({&piece, 1}, 1, std::ssize(part) + 1), "");
  EXPECT_EQ(sum_of(over), "");
  const std::string sum = sum_of(one);
  EXPECT_EQ(sum.size(), 64u);
  EXPECT_EQ(sum_of(two), sum);
  EXPECT_EQ(in_order.take({&piece, 1}, 1, std::ssize(part) + 1), sum);
  // What was kept is free again.
  PassingHash later;
  EXPECT_EQ(later.take({&piece, 1}, 1, std::ssize(part) + 1), "");
  EXPECT_EQ(sum_of(later), sum);
  // Of less memory, less is kept: half of it by one file.
  PassingHash::allow_early(2 * std::ssize(part) - 2);
  PassingHash large, small;
  EXPECT_EQ(large.take({&piece, 1}, 1, std::ssize(part) + 1), "");
  EXPECT_EQ(sum_of(large), "");
  PassingHash::allow_early(2 * std::ssize(part));
  EXPECT_EQ(small.take({&piece, 1}, 1, std::ssize(part) + 1), "");
  EXPECT_EQ(sum_of(small), sum);
  PassingHash::allow_early(i64{32} << 20);
}

/// Older bytes go when newer ones need their room, those that are read once first; what is on its way has its room,
/// too.
TEST(ReadCache, StayWithinTheirRoom) {
  ReadCache cache(100);
  const auto keep = [&](i64 bytes, ReadCache::Kind kind) {
    auto text = std::make_shared<const std::string>(static_cast<std::size_t>(bytes), 'x');
    cache.keep(text, kind);
    return std::weak_ptr(text);
  };
  const auto file = keep(30, ReadCache::Kind::WholeFile);
  const auto part = keep(40, ReadCache::Kind::Part);
  EXPECT_FALSE(file.expired() || part.expired());
  {
    const auto room = cache.make_room(50);
    EXPECT_TRUE(room);
    EXPECT_TRUE(part.expired());
    EXPECT_FALSE(file.expired());
    EXPECT_FALSE(cache.make_room(1));
    EXPECT_FALSE(keep(20, ReadCache::Kind::Part).expired());
    EXPECT_TRUE(keep(60, ReadCache::Kind::Part).expired());
  }
  EXPECT_TRUE(cache.make_room(1));
  cache.set_most_bytes(10);
  EXPECT_TRUE(keep(11, ReadCache::Kind::WholeFile).expired());
  EXPECT_TRUE(file.expired());
}

/// A wait for a server ends as soon as all calls of the process were asked to stop, and not before.
TEST(StoppableWait, EndsWithTheLastCall) {
  StopToken first, second;
  first.request();
  const auto start = std::chrono::steady_clock::now();
  const WaitingCall one(&first);
  EXPECT_EQ(slug_of([] { wait_stoppably(60'000); }), "interrupted");
  {
    const WaitingCall other(&second), unstoppable(nullptr);
    EXPECT_NO_THROW(wait_stoppably(1));
  }
  const WaitingCall other(&second);
  EXPECT_NO_THROW(wait_stoppably(1));
  std::thread later([&] { second.request(); });
  EXPECT_EQ(slug_of([] { wait_stoppably(60'000); }), "interrupted");
  later.join();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

/// A look-up of a name cannot be interrupted, but whoever waits for it can.
TEST(StoppableWait, LeavesACallThatNothingInterrupts) {
  bool is_done = false;
  run_stoppably([&] { is_done = true; });
  EXPECT_TRUE(is_done);
  StopToken stop;
  const WaitingCall call(&stop);
  const auto go = std::make_shared<std::atomic<bool>>(false), ended = std::make_shared<std::atomic<bool>>(false);
  std::thread asks([&] { stop.request(); });
  EXPECT_EQ(slug_of([&] {
              run_stoppably([go, ended] {
                while (!*go) std::this_thread::yield();
                *ended = true;
              });
            }),
            "interrupted");
  asks.join();
  EXPECT_FALSE(*ended);
  *go = true;
  while (!*ended) std::this_thread::yield();
}

}  // namespace
}  // namespace glu_ckpt
