// Threads that share the work of one search, their time limit, and their failures.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace coil {

// A failure on demand, for tests: one operation fails after n others. If off, it costs one relaxed load.
class Fault {
  public:
    void set(std::int64_t occasions) { left_.store(occasions, std::memory_order_relaxed); }
    bool strikes() { return left_.load(std::memory_order_relaxed) >= 0 && left_.fetch_sub(1, std::memory_order_relaxed) == 0; }

  private:
    std::atomic<std::int64_t> left_{-1};
};
inline Fault thread_fault, memory_fault;

// The time limit of a search, shared by its threads.
class Deadline {
  public:
    explicit Deadline(double seconds)  // 0: none
        : limited_(seconds > 0.0), end_(std::chrono::steady_clock::now() +
                                        std::chrono::nanoseconds(static_cast<std::int64_t>(limited_ ? std::min(seconds, 1e9) * 1e9 : 0.0))) {}
    bool passed() const { return passed_.load(std::memory_order_relaxed); }
    bool look() {  // at the clock
        if (limited_ && !passed() && std::chrono::steady_clock::now() > end_) passed_.store(true, std::memory_order_relaxed);
        return passed();
    }

  private:
    bool limited_;
    std::chrono::steady_clock::time_point end_;
    std::atomic<bool> passed_{false};
};

// The deadline as seen by one thread: the clock is read once per BYTES of work.
class Watch {
  public:
    static constexpr std::int64_t BYTES = 1 << 20;  // about 0.1 ms

    explicit Watch(Deadline &deadline) : deadline_(deadline) {}
    bool is_late(std::int64_t bytes) {
        done_ += bytes;
        if (done_ < BYTES) return deadline_.passed();
        done_ = 0;
        return deadline_.look();
    }

  private:
    Deadline &deadline_;
    std::int64_t done_ = 0;
};

// Several threads, including the caller's, that run the same function. The first exception in any of them, or in starting one, is
// thrown to the caller after all have ended.
class Crew {
  public:
    explicit Crew(int threads) : threads_(threads) {}

    template <class Work>
    void run(Work work) {
        const auto guarded = [this, &work]() noexcept {
            try {
                work();
            } catch (...) {
                fail(std::current_exception());
            }
        };
        std::vector<std::thread> others;
        try {
            others.reserve(static_cast<std::size_t>(threads_));
            for (int t = 1; t < threads_; ++t) {
                if (thread_fault.strikes())
                    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again), "starting a thread");
                others.emplace_back(guarded);
            }
        } catch (...) {
            fail(std::current_exception());
        }
        if (!failed()) guarded();
        for (std::thread &other : others) other.join();
        if (error_) std::rethrow_exception(error_);
    }

    // Whether a thread has failed: the others can stop.
    bool failed() const { return failed_.load(std::memory_order_relaxed); }

    // Waits until every thread has called this. False if a thread has failed.
    bool meet() {
        std::unique_lock<std::mutex> guard(lock_);
        const int round = round_;
        if (++waiting_ == threads_) {
            waiting_ = 0;
            ++round_;
            changed_.notify_all();
        } else {
            changed_.wait(guard, [&] { return round != round_ || failed(); });
        }
        return !failed();
    }

  private:
    void fail(std::exception_ptr error) noexcept {
        const std::lock_guard<std::mutex> guard(lock_);
        if (!error_) error_ = std::move(error);
        failed_.store(true, std::memory_order_relaxed);
        changed_.notify_all();
    }

    const int threads_;
    std::mutex lock_;
    std::condition_variable changed_;
    int waiting_ = 0, round_ = 0;
    std::atomic<bool> failed_{false};
    std::exception_ptr error_;
};

}  // namespace coil
