#include "fake_warp/random_warps.hpp"

#include <random>

#include "fake_warp/fiber.hpp"

namespace fake_warp {
namespace {

/// Rounds in which nothing happened, after which nothing will.
constexpr std::size_t kIdleRounds = 5000;

struct Warp : Fiber {
  const std::function<void()>* body = nullptr;
  bool ended = false;
};

struct Arrival {
  std::function<void()> body;
  std::size_t from = 0;
};

ucontext_t scheduler;
Warp* running = nullptr;
std::size_t number = 0;
std::size_t idle_steps = 0;
std::vector<Arrival> arrivals;

void warp_main() {
  (*running->body)();
  running->ended = true;
  something_happened();
  switch_to(running->context, scheduler);
}

void arrive(std::size_t which) {
  const Arrival arrival = std::move(arrivals[which]);
  arrivals.erase(arrivals.begin() + static_cast<std::ptrdiff_t>(which));
  number = arrival.from;
  arrival.body();
  something_happened();
}

}  // namespace

std::vector<std::size_t> run_in_random_order(const std::vector<std::function<void()>>& bodies, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Warp> warps(bodies.size());
  std::vector<std::size_t> left;
  for (std::size_t w = 0; w < warps.size(); ++w) {
    warps[w].body = &bodies[w];
    warps[w].begin(warp_main);
    left.push_back(w);
  }
  // One is slower than the others.
  const std::size_t slow = random() % warps.size();
  idle_steps = 0;
  arrivals.clear();
  while (!left.empty() && idle_steps < kIdleRounds * warps.size()) {
    ++idle_steps;
    if (!arrivals.empty() && random() % 4 == 0) arrive(random() % arrivals.size());
    const std::size_t w = left[random() % left.size()];
    if (w == slow && random() % 16 != 0) continue;
    running = &warps[w];
    number = w;
    switch_to(scheduler, running->context);
    if (running->ended) std::erase(left, w);
  }
  while (!arrivals.empty()) arrive(random() % arrivals.size());
  return left;
}

void later(std::function<void()> arrival) { arrivals.push_back({std::move(arrival), number}); }
std::size_t running_warp() { return number; }
void let_others_go_on() { switch_to(running->context, scheduler); }
void something_happened() { idle_steps = 0; }

}  // namespace fake_warp
