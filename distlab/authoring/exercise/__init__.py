"""For teachers: a new exercise to start from, and both editions of one.

    distlab exercise new 20_my_topic                    # its source, its checks, their test
    distlab exercise build 20_my_topic.py --out handout

What `new` makes works at once; a teacher replaces its one task by their own.
"""
