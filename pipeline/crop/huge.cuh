// Scales so large that no row of what a column sees fits into shared memory: images some ten
// thousand pixels wide. All threads of the block together on a pixel at a time, in float64.

__device__ __noinline__ void huge_scale(const u8* bytes, i64 image_pitch, Axis down, Axis along, int begin, int count, int size, double* sums, u8* out) {
    for (int pixel = 0; pixel < count * size; ++pixel) {
        const float y_centre = down.centre(begin + pixel / size), x_centre = along.centre(pixel % size);
        // One pixel more at either end: its weight is 0, wherever rounding puts it.
        const int top = (int)floorf(y_centre - down.radius), bottom = (int)ceilf(y_centre + down.radius);
        const int left = (int)floorf(x_centre - along.radius), right = (int)ceilf(x_centre + along.radius);
        double sum[4] = {0., 0., 0., 0.};  // of the colours, and of the weights
        for (int y = top; y <= bottom; ++y) {
            const double y_weight = tent(down.distance(begin + pixel / size, y), down.inverse);
            const u8* row = bytes + (down.inside(y) + down.origin) * image_pitch;
            for (int x = left + (int)threadIdx.x; x <= right; x += blockDim.x) {
                const double weight = y_weight * tent(along.distance(pixel % size, x), along.inverse);
                const u8* at = row + 3 * (i64)(along.inside(x) + along.origin);
                for (int i = 0; i < 3; ++i) sum[i] += weight * at[i];
                sum[3] += weight;
            }
        }
        for (int i = 0; i < 4; ++i) sums[4 * threadIdx.x + i] = sum[i];
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int t = 1; t < blockDim.x; ++t) {
                for (int i = 0; i < 4; ++i) sums[i] += sums[4 * t + i];
            }
        }
        __syncthreads();
        if (threadIdx.x < 3) out[3 * pixel + threadIdx.x] = (u8)rint(sums[threadIdx.x] / sums[3]);
        __syncthreads();
    }
}
