// Finds keys in a segment's dictionary: a binary search over the first keys of the blocks, then a scan of one block.
// coil/lists/dictionary.py writes it. Even if the bytes are damaged, nothing outside a block is read.
#pragma once
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "checks.hpp"
#include "views.hpp"

namespace coil {

// Iterates over the keys of one block.
class BlockKeys {
  public:
    BlockKeys(const Keys &keys, std::int64_t block)
        : at_(keys.data + keys.blocks[block]), end_(keys.data + keys.blocks[block + 1]) {}

    void next() {
        check(end_ - at_ >= 2, "keys", "of a block are too short");
        const int shared = at_[0], own = at_[1];
        check(shared <= size_ && own <= end_ - at_ - 2 && shared + own <= LONGEST_KEY, "keys", "are damaged");
        std::memcpy(key_ + shared, at_ + 2, static_cast<std::size_t>(own));
        size_ = shared + own;
        at_ += 2 + own;
    }

    // Negative, 0 or positive if the key is before, equal to or after the wanted one.
    int compare(const std::string &wanted) const {
        const std::size_t size = static_cast<std::size_t>(size_);
        const int found = std::memcmp(key_, wanted.data(), std::min(size, wanted.size()));
        return found != 0 ? found : size < wanted.size() ? -1 : size > wanted.size();
    }

    std::uint64_t beginning() const;
    bool at_end() const { return at_ == end_; }

  private:
    const std::uint8_t *at_, *const end_;
    std::uint8_t key_[LONGEST_KEY] = {};
    int size_ = 0;
};

// The first eight bytes of a key as a number; the numbers have the same order as the keys.
inline std::uint64_t beginning(const std::uint8_t *key, std::size_t size) {
    std::uint64_t number = 0;
    for (std::size_t i = 0; i < 8; ++i) number = number << 8 | (i < size ? key[i] : 0);
    return number;
}

inline std::uint64_t BlockKeys::beginning() const { return coil::beginning(key_, static_cast<std::size_t>(size_)); }

// The beginnings of the first keys of all blocks, in one array, so that a search over them reads little memory.
inline std::vector<std::uint64_t> block_beginnings(const Keys &keys) {
    std::vector<std::uint64_t> found;
    for (std::int64_t block = 0; block * BLOCK_KEYS < keys.count; ++block) {
        BlockKeys first(keys, block);
        first.next();
        found.push_back(first.beginning());
    }
    return found;
}

// The position of a key, -1 if it is not there.
inline std::int64_t find_key(const Keys &keys, const std::vector<std::uint64_t> &beginnings, const std::string &wanted) {
    if (!keys.count) return -1;
    // The block that may contain the key is in [low, high): from the last one with a lower beginning to the first with a higher.
    const std::uint64_t number = beginning(reinterpret_cast<const std::uint8_t *>(wanted.data()), wanted.size());
    const auto after = std::lower_bound(beginnings.begin(), beginnings.end(), number);
    std::int64_t low = std::max<std::int64_t>(after - beginnings.begin() - 1, 0);
    std::int64_t high = std::max<std::int64_t>(std::upper_bound(after, beginnings.end(), number) - beginnings.begin(), low + 1);
    while (high - low > 1) {
        const std::int64_t middle = (low + high) / 2;
        BlockKeys block(keys, middle);
        block.next();
        (block.compare(wanted) <= 0 ? low : high) = middle;
    }
    BlockKeys block(keys, low);
    const std::int64_t last = std::min<std::int64_t>(keys.count, (low + 1) * BLOCK_KEYS);
    for (std::int64_t place = low * BLOCK_KEYS; place < last; ++place) {
        block.next();
        if (block.compare(wanted) == 0) return place;
    }
    check(block.at_end(), "keys", "of a block are too long");
    return -1;
}

}  // namespace coil
